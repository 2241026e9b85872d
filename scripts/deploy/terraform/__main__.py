"""Checks deploy/terraform without a cloud; then plants mistakes in copies of it and wants each noticed by its own rule.

Exit code 0 all is well, 1 something is wrong.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import time

from . import policies, references, schema, selftest, shape
from .tree import Problem, Tree

ROOT = pathlib.Path(__file__).resolve().parents[3] / "deploy" / "terraform"
NOT_CHECKED = """not checked, because it needs the provider or the cloud:
  plan and apply; arguments that exclude one another and values that the provider or Google refuses;
  whether names are free, quotas, tiers and features of the region, the delay until rights have effect;
  costs, and that the budget's mail arrives; failover, restore and upgrades; .terraform.lock.hcl, which the first init makes."""


def problems_of(tree, known):
    found, count = references.check(tree)
    wrong, blocks = schema.check(tree, known)
    return found + wrong + shape.check(tree) + policies.check(tree), count, blocks


def formatted():
    """Problems and what to say about it. The canonical format is whatever `terraform fmt` says, so without it only the shape is checked."""
    program = shutil.which("terraform") or shutil.which("tofu")
    if program is None:
        return [], "neither terraform nor tofu is here: canonical format not checked, only indentation and white space"
    run = subprocess.run([program, "fmt", "-check", "-recursive", str(ROOT)], capture_output=True, text=True, timeout=60)
    files = [line for line in run.stdout.splitlines() if line.strip()]
    if run.returncode != 0 and not files:
        return [Problem("format", str(ROOT), run.stderr.strip())], ""
    return [Problem("format", file, "is not as `terraform fmt` writes it") for file in files], f"canonical format: {pathlib.Path(program).name} fmt"


def main():
    parser = argparse.ArgumentParser(prog="check-terraform", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schema", type=pathlib.Path, required=True, help="the wheel with the provider's schema")
    options = parser.parse_args()
    started = time.monotonic()
    tree, known = Tree(ROOT), schema.Schema(options.schema)
    problems, count, blocks = problems_of(tree, known)
    wrong, said = formatted()
    problems += wrong
    for problem in problems:
        print(f"check-terraform: {problem}", file=sys.stderr)
    if problems:
        return 1
    print(f"check-terraform: {sum(1 for _ in ROOT.rglob('*.tf'))} files, {count} references, {blocks} google blocks against the provider's schema, "
          f"{len(policies.ALL)} policies in {', '.join(sorted(tree.environments))}")
    print(f"  {said}")
    if not (ROOT.parent / "k8s").is_dir():
        print("  deploy/k8s is not here: names of accounts and secrets not compared with it")
    missed = selftest.run(ROOT, lambda copy: problems_of(Tree(copy), known)[0])
    for line in missed:
        print(f"check-terraform: self-test: {line}", file=sys.stderr)
    if missed:
        return 1
    print(f"  {len(selftest.MISTAKES)} planted mistakes, each reported by its own rule")
    print(NOT_CHECKED)
    print(f"check-terraform: all is well ({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
