"""Licences, bans and sources of everything that Cargo.lock resolves to, held against deny.toml without cargo-deny.

It reads `cargo metadata --locked`, which is silent on the network once the packages are here (`cargo fetch --locked`), and Cargo.lock.
Where deny.toml asks for something that is not understood here, that is a complaint: nothing of it is passed over in silence.
"""

import functools
import json
import subprocess
import tomllib
from pathlib import Path

PACKAGES = ("license-expression==30.4.4", "boolean.py==5.0")
# What of deny.toml is understood. Of `graph` and `sources` everything that stands there is; `confidence-threshold` is for licences in texts.
UNDERSTOOD = {
    "graph": {"targets", "all-features"},
    "licenses": {"allow", "confidence-threshold", "unused-allowed-license"},
    "bans": {"multiple-versions", "wildcards", "allow-wildcard-paths", "deny"},
    "sources": {"unknown-registry", "unknown-git", "allow-registry", "allow-git"},
}
# Values that are what is checked here: another one would ask for less or more than this.
MEANT = {
    ("graph", "all-features"): True,
    ("bans", "multiple-versions"): "allow",
    ("bans", "wildcards"): "deny",
    ("bans", "allow-wildcard-paths"): True,
    ("sources", "unknown-registry"): "deny",
    ("sources", "unknown-git"): "deny",
}
NOT_CHECKED = "advisories (known defects) and yanked versions: both need a network; run `make cargo-deny` where there is one"


def rules(root: Path) -> dict:
    return tomllib.loads((root / "deny.toml").read_text(encoding="utf-8"))


def understood(root: Path) -> list[str]:
    said = rules(root)
    wrong = [f"deny.toml: [{table}] {key} is not understood" for table in said for key in said[table].keys() - UNDERSTOOD.get(table, set())]
    for (table, key), value in MEANT.items():
        if said.get(table, {}).get(key) != value:
            wrong.append(f"deny.toml: [{table}] {key} is not {json.dumps(value)}, which is what is checked")
    for ban in said["bans"]["deny"]:
        # A name with a version, wrappers and the like are cargo-deny's alone.
        if not ban.keys() <= {"crate", "reason"} or not ban["crate"].replace("-", "").replace("_", "").isalnum():
            wrong.append(f"deny.toml: the ban {ban} is not understood")
    return sorted(wrong)


@functools.cache
def graph(root: Path) -> dict:
    """What is resolved for the targets of deny.toml with all features; ValueError where cargo cannot say."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features", "--manifest-path", str(root / "Cargo.toml")]
    for target in rules(root)["graph"]["targets"]:
        command += ["--filter-platform", target]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise ValueError(f"cargo metadata: {run.stderr.strip()}")
    found = json.loads(run.stdout)
    nodes = {node["id"] for node in found["resolve"]["nodes"]}
    assert len(nodes) > 100, "the graph is nearly empty: nothing would be judged"
    found["packages"] = [package for package in found["packages"] if package["id"] in nodes]
    return found


@functools.cache
def parsed(expression: str) -> object:
    """ExpressionError where it is no expression of SPDX's licences. Few expressions are written on many packages: each is read once."""
    # The slash is the old way to write OR.
    return spdx().parse(expression.replace("/", " OR "), validate=True, strict=True)


@functools.cache
def spdx() -> object:
    from license_expression import get_spdx_licensing

    return get_spdx_licensing()


def fits(expression: str, allowed: set[str]) -> bool:
    """Whether one may use it by licences that are allowed alone."""
    from license_expression import LicenseSymbol, LicenseWithExceptionSymbol

    def judged(part: object) -> bool:
        if isinstance(part, (LicenseSymbol, LicenseWithExceptionSymbol)):
            return str(part) in allowed
        every = {"AND": all, "OR": any}[part.operator.strip()]
        return every([judged(one) for one in part.args])

    return judged(parsed(expression))


def licences(root: Path) -> list[str]:
    from license_expression import ExpressionError

    wrong, allowed = [], set(rules(root)["licenses"]["allow"])
    for package in graph(root)["packages"]:
        name = f"{package['name']} {package['version']}"
        try:
            if not package["license"]:
                wrong.append(f"{name}: says no licence")
            elif not fits(package["license"], allowed):
                wrong.append(f"{name}: {package['license']} is not allowed")
        except ExpressionError as unreadable:
            wrong.append(f"{name}: {package['license']}: {unreadable}")
    return wrong


def bans(root: Path) -> list[str]:
    banned = {ban["crate"]: ban.get("reason", "banned") for ban in rules(root)["bans"]["deny"]}
    wrong = []
    for package in graph(root)["packages"]:
        if package["name"] in banned:
            wrong.append(f"{package['name']} {package['version']} is banned: {banned[package['name']]}")
        for dependency in package["dependencies"]:
            if dependency["req"] == "*" and not dependency.get("path"):
                wrong.append(f"{package['name']}: takes any version of {dependency['name']}")
    return wrong


def sources(root: Path) -> list[str]:
    """Of all that Cargo.lock names, for other targets too: from an allowed registry, with a checksum, or a member of this workspace."""
    said = rules(root)["sources"]
    allowed = {f"registry+{url}" for url in said["allow-registry"]} | {f"git+{url}" for url in said["allow-git"]}
    members = {manifest["name"] for manifest in members_of(root)}
    wrong = []
    for package in tomllib.loads((root / "Cargo.lock").read_text(encoding="utf-8"))["package"]:
        name, source = f"{package['name']} {package['version']}", package.get("source")
        if source is None:
            if package["name"] not in members:
                wrong.append(f"{name}: neither from a registry nor of this workspace")
        elif source.partition("#")[0].partition("?")[0] not in allowed:
            wrong.append(f"{name}: from {source}, which is not allowed")
        elif source.startswith("registry+") and "checksum" not in package:
            wrong.append(f"{name}: without a checksum")
    return wrong


def members_of(root: Path) -> list[dict]:
    """The packages of the workspace, by their manifests: what cargo says would need a lock file that it accepts."""
    folders = tomllib.loads((root / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["members"]
    manifests = [manifest for folder in folders for manifest in sorted(root.glob(f"{folder}/Cargo.toml"))]
    read = [tomllib.loads(manifest.read_text(encoding="utf-8")) for manifest in manifests]
    return [manifest["package"] for manifest in read if "package" in manifest]


# An expression, and whether one may use it where MIT, Apache-2.0 and the exception of LLVM are allowed.
EXPRESSIONS = {
    "MIT": True,
    "MIT/Apache-2.0": True,
    "GPL-3.0-only OR MIT": True,
    "Apache-2.0 WITH LLVM-exception": True,
    "(MIT OR GPL-2.0-only) AND Apache-2.0": True,
    "GPL-3.0-only": False,
    "MIT AND GPL-3.0-only": False,
    "MIT AND (GPL-3.0-only OR BSL-1.0)": False,
    "Apache-2.0 WITH Classpath-exception-2.0": False,
}


def expressions() -> list[str]:
    """The reading of expressions itself, on some whose answer is known."""
    from license_expression import ExpressionError

    allowed = {"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"}
    wrong = [f"{expression}: taken for {'not ' * known}allowed" for expression, known in EXPRESSIONS.items() if fits(expression, allowed) != known]
    for expression in ("Mit-ish", "MIT Apache-2.0", "LicenseRef-ours"):
        try:
            fits(expression, allowed)
            wrong.append(f"{expression}: was read")
        except ExpressionError:
            pass
    return wrong
