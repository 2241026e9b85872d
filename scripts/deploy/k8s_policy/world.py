"""An overlay as rendered: its objects, who is what, and the questions that several rules ask."""

import copy
import functools
import os
import pathlib
import re
import shlex
import subprocess
import tomllib
from dataclasses import dataclass, field

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
K8S = ROOT / "deploy" / "k8s"
OVERLAYS = ("dev", "dev-etcd", "prod")
NAME = "app.kubernetes.io/name"
OUTSIDE = "dlock.dev/outside"
SECRETS_DRIVER = "secrets-store-gke.csi.k8s.io"


class Failure(Exception):
    """Something that ends the check: not a broken rule, but no way to look."""


def render(folder):
    command = [*shlex.split(os.environ["KUSTOMIZE"]), str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"{shlex.join(command)}: {done.stderr.strip()}")
    return [thing for thing in yaml.safe_load_all(done.stdout) if thing]


def load(overlay):
    """The overlay and its migrations, which are applied one after the other into the same namespace."""
    folder = K8S / "overlays" / overlay
    return World(overlay, {"system": render(folder), "migrate": render(folder / "migrate")})


def selects(selector, labels):
    """Whether a label selector of Kubernetes takes these labels. An empty one takes everything, a missing one nothing."""
    if selector is None:
        return False
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for each in selector.get("matchExpressions") or []:
        operator, have = each["operator"], labels.get(each["key"])
        if operator == "In" and have not in each["values"]:
            return False
        if operator == "NotIn" and have in each["values"]:
            return False
        if operator == "Exists" and each["key"] not in labels:
            return False
        if operator == "DoesNotExist" and each["key"] in labels:
            return False
    return True


def seconds(text):
    """A duration of dlock's configuration, in seconds."""
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
    parts = re.findall(r"(\d+)(ms|s|m|h|d)", text)
    if not parts:
        raise Failure(f"not a duration: {text}")
    return sum(int(number) * units[unit] for number, unit in parts)


def quantity(text):
    """An amount of Kubernetes, as a number."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text)).groups()
    return float(number) * {"": 1, "m": 0.001, "Mi": 2**20, "Gi": 2**30, "k": 1e3, "M": 1e6, "G": 1e9}[unit]


def flat(table, before=""):
    """TOML as names with dots: what a nested table and a quoted name have in common."""
    found = {}
    for key, value in table.items():
        name = f"{before}{key}"
        if isinstance(value, dict):
            found.update(flat(value, f"{name}."))
        else:
            found[name] = value
    return found


@functools.cache
def setting_defaults():
    """The table of docs/configuration.md: name → (default, meaning). A test of the product compares it with the code."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    table = text.split("<!-- settings: begin -->")[1].split("<!-- settings: end -->")[0]
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 6 and cells[0].startswith("`"):
            default = re.match(r"`([^`]*)`", cells[1])
            found[cells[0].strip("`")] = (default.group(1) if default else None, cells[5])
    if len(found) < 50:
        raise Failure(f"docs/configuration.md: only {len(found)} settings found")
    return found


@dataclass
class Workload:
    """A Deployment, StatefulSet or Job, with what its pods are."""

    thing: dict
    pod: dict = field(init=False)
    labels: dict = field(init=False)
    annotations: dict = field(init=False)

    def __post_init__(self):
        template = self.thing["spec"]["template"]
        self.pod = template["spec"]
        self.labels = template["metadata"].get("labels", {})
        self.annotations = template["metadata"].get("annotations", {})

    @property
    def kind(self):
        return self.thing["kind"]

    @property
    def name(self):
        return self.thing["metadata"]["name"]

    @property
    def serves(self):
        return self.kind != "Job"

    @property
    def containers(self):
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def main(self):
        return self.pod["containers"][0]

    def volume(self, name):
        return next((volume for volume in self.pod.get("volumes", []) if volume["name"] == name), None)


class World:
    def __init__(self, overlay, parts):
        self.overlay, self.parts = overlay, parts
        self.things, seen = [], {}
        self.conflicts = []
        for part, things in parts.items():
            for thing in things:
                key = (thing["kind"], thing["metadata"].get("namespace"), thing["metadata"]["name"])
                if key not in seen:
                    seen[key] = (part, thing)
                    self.things.append(thing)
                elif seen[key][0] == part or seen[key][1] != thing:
                    self.conflicts.append(f"{key[0]} {key[2]} stands twice, and differs or is in the same part")
        self.workloads = [Workload(thing) for thing in self.of("Deployment", "StatefulSet", "Job")]

    def mutated(self, change):
        """A copy in which something was changed; the proof that a rule can fail."""
        parts = copy.deepcopy(self.parts)
        world = World(self.overlay, parts)
        change(world)
        return World(self.overlay, parts)

    def of(self, *kinds):
        return [thing for thing in self.things if thing["kind"] in kinds]

    def find(self, kind, name):
        return next((thing for thing in self.of(kind) if thing["metadata"]["name"] == name), None)

    def workload(self, name):
        return next(workload for workload in self.workloads if workload.name == name)

    def selected(self, selector):
        return [workload for workload in self.workloads if selects(selector, workload.labels)]

    def drop(self, kind, name):
        for things in self.parts.values():
            things[:] = [thing for thing in things if (thing["kind"], thing["metadata"]["name"]) != (kind, name)]

    def autoscaler(self, workload):
        for thing in self.of("HorizontalPodAutoscaler"):
            target = thing["spec"]["scaleTargetRef"]
            if (target["kind"], target["name"]) == (workload.kind, workload.name):
                return thing
        return None

    def replicas(self, workload):
        scaler = self.autoscaler(workload)
        return scaler["spec"]["minReplicas"] if scaler else workload.thing["spec"].get("replicas", 1)

    def config_map(self, workload):
        """The ConfigMap mounted as configuration, or None."""
        for volume in workload.pod.get("volumes", []):
            if "configMap" in volume:
                return self.find("ConfigMap", volume["configMap"]["name"])
        return None

    def config_text(self, workload):
        mounted = self.config_map(workload)
        return None if mounted is None else next(iter(mounted["data"].values()))

    def settings(self, workload):
        """What the workload's TOML file says, by name; empty where it has none."""
        text = self.config_text(workload)
        return {} if text is None else flat(tomllib.loads(text))

    def environment(self, workload):
        """Literal variables, and those that come from a ConfigMap."""
        found = {}
        for variable in (workload.main.get("env") or []):
            source = (variable.get("valueFrom") or {}).get("configMapKeyRef")
            if source:
                mounted = self.find("ConfigMap", source["name"])
                found[variable["name"]] = ((mounted or {}).get("data") or {}).get(source["key"], "")
            else:
                found[variable["name"]] = variable.get("value", "")
        return found

    def secret_files(self, workload):
        """Path in the container → name of the secret, through the SecretProviderClass that is mounted."""
        found = {}
        for mount in workload.main.get("volumeMounts") or []:
            volume = workload.volume(mount["name"]) or {}
            if (volume.get("csi") or {}).get("driver") != SECRETS_DRIVER:
                continue
            provider = self.find("SecretProviderClass", volume["csi"]["volumeAttributes"]["secretProviderClass"])
            for secret in yaml.safe_load(provider["spec"]["parameters"]["secrets"]) if provider else []:
                found[f"{mount['mountPath']}/{secret['path']}"] = secret["resourceName"].split("/")[3]
        return found

    def texts(self, workload):
        """Everything that is said to the process: arguments, variables, file."""
        words = [*(workload.main.get("command") or []), *(workload.main.get("args") or [])]
        words += self.environment(workload).values()
        text = self.config_text(workload)
        # A comment of the file is said to the reader alone.
        return words + ([str(value) for value in self.settings(workload).values()] if text else [])
