"""Every reference names something that is there, and everything that is there is used."""

from .tree import META, Problem, references


def check(tree):
    problems, count = [], 0
    used_folders = {folder.child(name) for folder in tree.folders.values() for name in folder.modules}
    for path, folder in tree.folders.items():
        problems += folder.problems
        if path not in used_folders and folder not in tree.environments.values():
            problems.append(Problem("reference", folder.name, "no module and no environment"))
        rest = [folder.locals, folder.modules, folder.outputs, folder.providers, *folder.resources.values(), *folder.data.values()]
        used = references(rest)
        # A validation may look at other variables, but looking at itself is no use.
        for name, body in folder.variables.items():
            used_here = references(body)
            problems += [missing for parts in used_here if (missing := resolve(tree, folder, parts))]
            used += [parts for parts in used_here if parts[:2] != ["var", name]]
        for parts in used:
            count += 1
            if missing := resolve(tree, folder, parts):
                problems.append(missing)
        names = {tuple(parts[:2]) for parts in used}
        for name, body in folder.variables.items():
            where = f"{folder.name}: variable {name}"
            if ("var", name) not in names:
                problems.append(Problem("variable", where, "is never used"))
            problems += [Problem("variable", where, f"has no {part}") for part in ("type", "description") if not body.get(part)]
        for name in folder.locals:
            if ("local", name) not in names:
                problems.append(Problem("reference", folder.name, f"local.{name} is never used"))
        for name, body in folder.outputs.items():
            where = f"{folder.name}: output {name}"
            problems += [Problem("variable", where, f"has no {part}") for part in ("value", "description") if not body.get(part)]
        for name, body in folder.modules.items():
            problems += inputs(tree, folder, name, body)
    return problems, count


def resolve(tree, folder, parts):
    """The problem with a reference, or None."""
    said = ".".join(parts)
    kind, name = parts[0], parts[1] if len(parts) > 1 else ""
    there = True
    if kind == "var":
        there = name in folder.variables
    elif kind == "local":
        there = name in folder.locals
    elif kind == "data":
        there = tuple(parts[1:3]) in folder.data
    elif kind == "module":
        child = tree.folders.get(folder.child(name)) if name in folder.modules else None
        there = child is not None and (len(parts) < 3 or parts[2] in child.outputs)
    else:
        there = (kind, name) in folder.resources
    return None if there else Problem("reference", folder.name, f"{said} is not there")


def inputs(tree, folder, name, body):
    where = f"{folder.name}: module {name}"
    child = tree.folders.get(folder.child(name))
    if child is None:
        return [Problem("reference", where, f"there is no module at {body.get('source')}")]
    given = set(body) - META
    required = {variable for variable, declared in child.variables.items() if "default" not in declared}
    return [Problem("input", where, f"has no input {extra}") for extra in sorted(given - set(child.variables))] + [
        Problem("input", where, f"is not given its input {missing}") for missing in sorted(required - given)
    ]
