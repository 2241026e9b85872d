"""White space, and nothing that looks like a credential, in every file of the tree. What is canonical beyond that only `terraform fmt` can say."""

import re

from .tree import Problem

CREDENTIAL = re.compile(r"-----BEGIN|\"type\"\s*:\s*\"service_account\"|\bAIza[0-9A-Za-z_-]{35}|postgres(ql)?://[^/\s:@]+:[^@\s]+@")


def check(tree):
    problems = []
    for file in sorted(path for path in tree.root.rglob("*") if path.is_file() and ".terraform" not in path.parts):
        where, text = str(file.relative_to(tree.root)), file.read_text()
        if CREDENTIAL.search(text):
            problems.append(Problem("no-keys", where, "holds what looks like a credential"))
        if file.suffix == ".json" or ".tfstate" in file.name:
            problems.append(Problem("no-keys", where, "a state or a key file has no place here"))
        if not text.endswith("\n") or text.endswith("\n\n"):
            problems.append(Problem("shape", where, "does not end with one newline"))
        for number, line in enumerate(text.splitlines(), 1):
            if "\t" in line or line != line.rstrip() or len(line) > 150 or (len(line) - len(line.lstrip())) % 2:
                problems.append(Problem("shape", f"{where}:{number}", "a tab, white space at the end, an odd indent, or more than 150 columns"))
    return problems
