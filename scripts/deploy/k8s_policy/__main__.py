"""See scripts/check-k8s."""

import argparse
import os
import pathlib
import sys
import time

from . import alerts, binary, placeholders, rail_tls, rules, schema, selftest
from .world import OVERLAYS, Failure, load

CANNOT_SEE = """\
not verified, for want of a cluster and of a cloud:
  - admission: webhooks, the Pod Security standard, quotas, what Autopilot changes in a pod, whether a CRD is there and of this shape
  - Secret Manager's CSI driver: that secrets are mounted, readable for user 10001, and rotated; Workload Identity; Artifact Registry
  - NetworkPolicy: that it is enforced, that DNS, probes and managed Prometheus get through; that Cloud SQL is at these addresses
  - scheduling: spreading, eviction, disruption budgets, disks, the autoscaler; load balancing over connections that are kept
  - that a rollout drains as the numbers say, and that anything of this serves"""


def check(options):
    worlds = {overlay: load(overlay) for overlay in OVERLAYS}
    wrong = []
    if not options.self_test:
        count = 0
        for overlay, world in worlds.items():
            broken = rules.judge(world)
            wrong += [f"{overlay}: {name}: {sentence}" for name, found in broken.items() for sentence in found]
            wrong += [f"{overlay}: schema: {sentence}" for thing in world.things for sentence in schema.check(thing)]
            count += len(world.things)
        wrong += [f"prod with [rail.tls]: {name}: {sentence}"
                  for name, found in rules.judge(worlds["prod"].mutated(rail_tls.switch_on)).items() for sentence in found]
        print(f"  {count} objects of {len(worlds)} overlays rendered by `{os.environ['KUSTOMIZE']}`, held against the schemas of Kubernetes "
              f"{', '.join(schema.VERSIONS)} and three of ours, and against {len(rules.RULES)} rules", flush=True)
    if wrong:
        print("  self-test: not run, since it breaks manifests that keep the rules", flush=True)
    else:
        found, count = selftest.run(worlds)
        wrong += [f"self-test: {sentence}" for sentence in found]
        print(f"  self-test: {count} ways to break them, each reported by its rule, and by none that is about something else; "
              "unknown fields refused" if not found else
              f"  self-test: {len(found)} of {count} went wrong", flush=True)
    if options.dlock:
        program = binary.Binary(options.dlock)
        found, tried, left = binary.check(program, worlds)
        wrong += [f"binary: {sentence}" for sentence in found]
        print(f"  {tried} command lines and configurations read by {options.dlock.name} ({program.said}), "
              "and refused with a slip in them", flush=True)
        for sentence in left:
            print(f"  not tried: {sentence}", flush=True)
    elif not options.self_test:
        print("  NOT TRIED: the configurations, since no --dlock was given", flush=True)
    return wrong


def ready(overlay):
    """What has to be put right before this overlay is applied."""
    world = load(overlay)
    wrong = [f"{name}: {sentence}" for name, found in rules.judge(world).items() for sentence in found]
    return wrong + list(placeholders.left(world))


def main():
    parser = argparse.ArgumentParser(prog="check-k8s")
    parser.add_argument("--dlock", type=pathlib.Path, help="the binary that is to read the configurations")
    parser.add_argument("--self-test", action="store_true", help="only break every rule")
    parser.add_argument("--may-be-applied", choices=OVERLAYS, help="whether this overlay was told everything that is one's own")
    parser.add_argument("--write-rules", action="store_true", help="write the alert rules' manifest from deploy/prometheus/rules")
    try:
        options = parser.parse_args()
    except SystemExit as end:
        return 64 if end.code else 0
    if options.dlock is not None and not options.dlock.is_file():
        print("check-k8s: --dlock must name the binary", file=sys.stderr)
        return 64
    if options.write_rules:
        alerts.write()
        return 0
    started = time.monotonic()
    print("check-k8s", flush=True)
    try:
        wrong = ready(options.may_be_applied) if options.may_be_applied else check(options)
    except Failure as failure:
        print(f"check-k8s: {failure}", file=sys.stderr)
        return 1
    for sentence in wrong:
        print(f"check-k8s: {sentence}", file=sys.stderr)
    if wrong:
        print(f"check-k8s: {len(wrong)} things are wrong", file=sys.stderr)
        return 1
    if options.may_be_applied:
        print(f"check-k8s: {options.may_be_applied} was told everything")
        return 0
    if not options.self_test:
        print(CANNOT_SEE)
    print(f"check-k8s: all is well ({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
