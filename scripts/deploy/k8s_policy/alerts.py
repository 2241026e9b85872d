"""The rules of deploy/prometheus/rules as managed Prometheus takes them: objects of kind Rules, written from those files and compared with them."""

import functools

import yaml

from .world import K8S, ROOT

SOURCE = ROOT / "deploy" / "prometheus" / "rules"
FILE = K8S / "base" / "system" / "rules.yaml"
# Half of `for: 1m`, the shortest that is not at once; scraped is every 15 s.
INTERVAL = "30s"
HEAD = "# Written by scripts/check-k8s --write-rules from deploy/prometheus/rules, and compared with it by the check. Change it there.\n"


@functools.cache
def wanted():
    """Name of the object → its spec."""
    found = {}
    for path in sorted(SOURCE.glob("*.yml")):
        groups = yaml.safe_load(path.read_text())["groups"]
        found[f"dlock-{path.stem}"] = {"groups": [{"name": each["name"], "interval": INTERVAL, "rules": each["rules"]} for each in groups]}
    return found


class Dumper(yaml.SafeDumper):
    """Lists below their keys, and several lines as several lines."""

    def increase_indent(self, flow=False, indentless=False):
        return super().increase_indent(flow, False)

    def ignore_aliases(self, data):
        return True


def several_lines(dumper, text):
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if text.endswith("\n") else None)


Dumper.add_representer(str, several_lines)


def write():
    objects = [{"apiVersion": "monitoring.googleapis.com/v1", "kind": "Rules", "metadata": {"name": name}, "spec": spec}
               for name, spec in wanted().items()]
    FILE.write_text(HEAD + yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, width=115, allow_unicode=True))


def compare(world):
    """Sentences for every object that is missing, too many, or says something else than its file."""
    have = {thing["metadata"]["name"]: thing["spec"] for thing in world.of("Rules")}
    for name in sorted(set(have) | set(wanted())):
        if name not in have:
            yield f"Rules {name} is missing, so nobody is alerted by what is in it"
        elif name not in wanted():
            yield f"Rules {name} is of no file in deploy/prometheus/rules"
        elif have[name] != wanted()[name]:
            yield f"Rules {name} is not what its file in deploy/prometheus/rules says (scripts/check-k8s --write-rules)"
