"""Reads a tree of Terraform files: folders of blocks, and the environments as instances of modules in which values can be looked up.

Owns: parsing, and finding references in expressions. It evaluates no function: what is not a literal or a plain reference stays unknown.
"""

import functools
import pathlib
import re

import hcl2

META = {"count", "for_each", "depends_on", "provider", "lifecycle", "provisioner", "connection", "source", "version", "providers"}
REFERENCE = re.compile(r"(?<![\w.\-])(var|local|module|data|google_[a-z0-9_]+)((?:\.[A-Za-z_][\w-]*|\[[^\[\]]*\])+)")


class Problem(tuple):
    """What is wrong: the rule, the place, the text."""

    def __new__(cls, rule, where, text):
        return super().__new__(cls, (rule, where, text))

    def __str__(self):
        return f"{self[1]}: {self[2]} [{self[0]}]"


class Unknown:
    """A value that only Terraform or the cloud knows."""

    def __repr__(self):
        return "unknown"


UNKNOWN = Unknown()


def bare(text):
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def clean(value):
    """Takes the parser's marks away. Literal strings lose their quotes; expressions keep their ${…}."""
    if isinstance(value, dict):
        return {bare(key): clean(inner) for key, inner in value.items() if not key.startswith("__")}
    if isinstance(value, list):
        return [clean(inner) for inner in value]
    return bare(value) if isinstance(value, str) else value


@functools.lru_cache(maxsize=None)
def parse(text):
    return hcl2.loads(text)


def code(text):
    """The code in a template, without what stands in quotes there; code within quotes is found too."""
    out, modes, index = [], ["text"], 0
    while index < len(text):
        char = text[index]
        if modes[-1] == "text":
            if text.startswith("$${", index):
                index += 2
            elif text.startswith("${", index):
                modes.append("code")
                out.append(" ")
                index += 1
            elif char == "\\":
                index += 1
            elif char == '"' and len(modes) > 1:
                modes.pop()
                out.append('"')
        elif char == '"':
            modes.append("text")
            out.append('"')
        elif char == "{":
            modes.append("brace")
            out.append(char)
        elif char == "}":
            modes.pop()
            out.append(" " if modes[-1] == "text" else char)
        else:
            out.append(char)
        index += 1
    return "".join(out)


def references(value):
    """Each reference in a value as a list of its parts: ["var", "region"], ["module", "network", "network_id"]."""
    found = []
    if isinstance(value, dict):
        for key, inner in value.items():
            if "${" in key or key.startswith("("):
                found += references(key if "${" in key else "${" + key + "}")
            found += references(inner)
    elif isinstance(value, list):
        for inner in value:
            found += references(inner)
    elif isinstance(value, str) and "${" in value:
        for match in REFERENCE.finditer(code(value)):
            found.append([match[1]] + re.findall(r"\.([A-Za-z_][\w-]*)", re.sub(r"\[[^\[\]]*\]", "", match[2])))
            # What stands in brackets is an expression too.
            for inner in re.findall(r"\[([^\[\]]*)\]", match[2]):
                found += references("${" + inner + "}")
    return found


class Folder:
    """The blocks of one folder."""

    def __init__(self, root, path):
        self.path, self.name = path, str(path.relative_to(root))
        self.variables, self.locals, self.outputs, self.modules = {}, {}, {}, {}
        self.resources, self.data, self.terraform, self.providers = {}, {}, [], []
        self.problems = []
        for file in sorted(path.glob("*.tf")):
            try:
                blocks = parse(file.read_text())
            except Exception as error:  # The parser has many kinds, and each means the same here.
                self.problems.append(Problem("syntax", str(file.relative_to(root)), str(error).strip().splitlines()[0]))
                continue
            self.add(blocks)

    def add(self, blocks):
        for kind, found in blocks.items():
            if kind.startswith("__"):
                continue
            for block in clean(found):
                if kind in ("resource", "data"):
                    into = self.resources if kind == "resource" else self.data
                    for type_, named in block.items():
                        for name, body in named.items():
                            self.once(into, (type_, name), body, f"{kind} {type_}.{name}")
                elif kind in ("variable", "output", "module"):
                    for name, body in block.items():
                        self.once(getattr(self, kind + "s"), name, body, f"{kind} {name}")
                elif kind == "locals":
                    for name, body in block.items():
                        self.once(self.locals, name, body, f"local {name}")
                elif kind == "terraform":
                    self.terraform.append(block)
                elif kind == "provider":
                    self.providers.append(block)
                else:
                    self.problems.append(Problem("syntax", self.name, f"a block of kind {kind}, which this tree does not use"))

    def once(self, into, key, body, what):
        if key in into:
            self.problems.append(Problem("syntax", self.name, f"{what} stands twice"))
        into[key] = body

    def child(self, name):
        source = self.modules[name].get("source", "")
        return (self.path / source).resolve() if source.startswith(".") else None


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.folders = {path.resolve(): Folder(self.root, path) for path in sorted({file.parent for file in self.root.rglob("*.tf")})}
        self.environments = {path.name: folder for path, folder in self.folders.items() if path.parent.name == "envs"}

    def instance(self, environment):
        return Instance(self, self.environments[environment], "", None, {})


class Instance:
    """A folder as it is called: its arguments are looked up in the caller."""

    def __init__(self, tree, folder, path, parent, call):
        self.tree, self.folder, self.path, self.parent, self.call = tree, folder, path, parent, call
        self.children = {}
        for name, body in folder.modules.items():
            child = tree.folders.get(folder.child(name))
            if child is not None:
                self.children[name] = Instance(tree, child, f"{path}module.{name}.", self, body)

    def all(self):
        yield self
        for child in self.children.values():
            yield from child.all()

    def resources(self):
        for instance in self.all():
            for (type_, name), body in instance.folder.resources.items():
                yield instance, type_, name, body

    def value(self, given):
        """The literal behind a value, through variables, their defaults, locals and members; else UNKNOWN."""
        if isinstance(given, list):
            return [self.value(inner) for inner in given]
        if isinstance(given, dict):
            return {key: self.value(inner) for key, inner in given.items()}
        if not isinstance(given, str) or "${" not in given:
            return given
        plain = re.fullmatch(r"\$\{(var|local)\.([\w-]+)((?:\.[\w-]+)*)\}", given)
        if plain is None:
            return UNKNOWN
        kind, name, members = plain[1], plain[2], [part for part in plain[3].split(".") if part]
        if kind == "local":
            found = self.value(self.folder.locals[name]) if name in self.folder.locals else UNKNOWN
        elif self.parent is not None and name in self.call:
            found = self.parent.value(self.call[name])
        else:
            found = self.value(self.folder.variables.get(name, {}).get("default", UNKNOWN))
        for member in members:
            if not isinstance(found, dict):
                return UNKNOWN
            found = found[member] if member in found else self.optional(name, member)
        return found

    def optional(self, variable, member):
        type_ = self.folder.variables.get(variable, {}).get("type", "")
        match = re.search(rf"\b{re.escape(member)} = optional\(\w+, (\"[^\"]*\"|true|false|\d+)\)", str(type_))
        if match is None:
            return UNKNOWN
        return {"true": True, "false": False}.get(match[1], bare(match[1]))

    def address(self, type_, name):
        return f"{self.path}{type_}.{name}"

    def everything(self):
        return {instance.address(type_, name) for instance, type_, name, _ in self.resources()}

    def needs(self, value, seen=frozenset()):
        """The resources that a value waits for, as addresses."""
        found = set()
        for parts in references(value):
            key = (self.path, tuple(parts[:3]))
            if key in seen:
                continue
            found |= self.follow(parts, seen | {key})
        return found

    def follow(self, parts, seen):
        kind, name = parts[0], parts[1] if len(parts) > 1 else ""
        if kind == "var":
            return self.parent.needs(self.call[name], seen) if self.parent is not None and name in self.call else set()
        if kind == "local":
            return self.needs(self.folder.locals.get(name, ""), seen)
        if kind == "data":
            return set()
        if kind == "module":
            child = self.children.get(name)
            if child is None:
                return set()
            if len(parts) < 3:
                return child.everything()
            output = child.folder.outputs.get(parts[2], {})
            return child.needs([output.get("value", ""), output.get("depends_on", [])], seen)
        return {self.address(kind, name)} if (kind, name) in self.folder.resources else set()

    def waits_for(self):
        """What the depends_on of this module's call, and of the calls around it, make everything in it wait for."""
        if self.parent is None:
            return set()
        return self.parent.needs(self.call.get("depends_on", [])) | self.parent.waits_for()

    def graph(self):
        return {inst.address(type_, name): inst.needs(body) | inst.waits_for() for inst, type_, name, body in self.resources()}


def reachable(graph, start):
    seen, todo = set(), [start]
    while todo:
        for node in graph.get(todo.pop(), ()):
            if node not in seen:
                seen.add(node)
                todo.append(node)
    return seen
