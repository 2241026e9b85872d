"""Holds google resources against the provider's schema.

The provider's binary is a download that has to be initialised; the Python bindings of the same provider carry its resource types, arguments, nested
blocks, which of them are required, and the attributes that may be read. Values, and arguments that exclude one another, are not in there.
"""

import gzip
import io
import json
import re
import tarfile
import zipfile

from .tree import META, Problem, references

PACKAGE = "@cdktf/provider-google."
# Computed attributes of nested blocks are behind accessors of the bindings; every resource has an id.
ALWAYS = {"id"}


def assembly(wheel):
    with zipfile.ZipFile(wheel) as outer:
        inner = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as files:
            found = json.loads(files.extractfile("package/.jsii").read())
            if found.get("compression"):
                found = json.loads(gzip.decompress(files.extractfile("package/.jsii.gz").read()))
    return found["types"]


def squeezed(name):
    """The bindings write http2Options or http2_options: without underscores and case both are one."""
    return name.replace("_", "").lower()


def block_type(type_):
    """The bindings' type of a nested block; None for a plain value."""
    if "fqn" in type_:
        return type_["fqn"] if type_["fqn"].startswith(PACKAGE) else None
    if "collection" in type_:
        return block_type(type_["collection"]["elementtype"])
    for member in type_.get("union", {}).get("types", []):
        if found := block_type(member):
            return found
    return None


class Schema:
    def __init__(self, wheel):
        self.types = assembly(wheel)
        self.known = {}
        for name, type_ in self.types.items():
            summary = (type_.get("docs") or {}).get("summary", "")
            match = re.search(r"/docs/(resources|data-sources)/\S+ (google_\w+)\}", summary)
            if match and type_["kind"] == "class":
                self.known["data" if match[1] == "data-sources" else "resource", match[2]] = name

    def arguments(self, name):
        """Argument to its description, of a resource's configuration or of a nested block."""
        own = [argument for argument in self.types[name].get("properties", []) if argument.get("abstract")]
        return {squeezed(argument["name"]): argument for argument in own}

    def attributes(self, kind, type_):
        return {squeezed(attribute["name"]) for attribute in self.types[self.known[kind, type_]].get("properties", [])} | ALWAYS

    def body(self, where, name, body, top=False):
        arguments, seen, problems = self.arguments(name), set(), []
        given = {key: inner for key, inner in body.items() if key != "dynamic"}
        for dynamic in body.get("dynamic", []):
            for key, spec in dynamic.items():
                given.setdefault(key, []).extend(spec.get("content", []))
        for key, inner in given.items():
            if top and key in META:
                continue
            argument = arguments.get(squeezed(key))
            if argument is None:
                problems.append(Problem("schema", where, f"the provider has no argument {key}"))
                continue
            seen.add(squeezed(key))
            nested = block_type(argument["type"])
            if nested is None:
                if isinstance(inner, list) and inner and all(isinstance(entry, dict) for entry in inner):
                    problems.append(Problem("schema", where, f"{key} is a value, not a block"))
            elif not isinstance(inner, list):
                problems.append(Problem("schema", where, f"{key} is a block, not a value"))
            else:
                for block in inner:
                    problems += self.body(f"{where}.{key}", nested, block)
        for key, argument in arguments.items():
            if not argument.get("optional") and key not in seen:
                problems.append(Problem("schema", where, f"the required argument {argument['name']} is missing"))
        return problems


def check(tree, schema):
    problems, count = [], 0
    for folder in tree.folders.values():
        for kind, blocks in (("resource", folder.resources), ("data", folder.data)):
            for (type_, name), body in blocks.items():
                where, count = f"{folder.name}: {type_}.{name}", count + 1
                if (kind, type_) not in schema.known:
                    problems.append(Problem("schema", where, f"the provider has no {kind} {type_}"))
                else:
                    problems += schema.body(where, schema.known[kind, type_] + "Config", body, top=True)
        whole = [folder.locals, folder.modules, folder.outputs, *folder.resources.values(), *folder.data.values()]
        for parts in references(whole):
            kind, parts = ("data", parts[1:]) if parts[0] == "data" else ("resource", parts)
            if (kind, parts[0]) in schema.known and len(parts) > 2 and squeezed(parts[2]) not in schema.attributes(kind, parts[0]):
                problems.append(Problem("schema", folder.name, f"{parts[0]} has no attribute {parts[2]}"))
    return problems, count
