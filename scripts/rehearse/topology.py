"""The topology: what the Kubernetes manifests say, as a compose file for one machine."""

import json
import re
import socket
import tomllib

import yaml

from rehearse.stack import ROOT

ZONES, NODES_OF_A_ZONE = "abc", 2
# What the manifests said when this was written: used, and said aloud, only where there are none.
WITHOUT_MANIFESTS = {"dlock-etcd": 3, "lock-server": 3, "payment-resource": 2, "rail-proxy": 2, "rail-stub": 1, "payout-executor": 12,
                     "payout-reconciler": 2}
# In the order of a roll-out. The rail stub and paydb are the environment: one of each, on no node, never disturbed.
TIERS = ["dlock-etcd", "lock-server", "payment-resource", "rail-proxy", "payout-executor", "payout-reconciler"]
# The compose file's service that a tier is made from.
TEMPLATES = {"dlock-etcd": "etcd", "lock-server": "lock-server-etcd", "payout-executor": "payout-executor-1",
             "payout-reconciler": "payout-executor-1"}
# Asked less often than in production, because fourteen workers share two cores with everything else.
SLOWER = {"executor.poll.interval": "2s", "executor.concurrency": "2"}
# Asked sooner than in production (30s, 60s), because the run is minutes long.
SOONER = {"executor.reconcile.interval": "5s", "rail.visibility-horizon": "10s"}


class Manifests:
    """Counts, names and settings, as an overlay's own files say them."""

    def __init__(self, overlay):
        self.objects, self.settings = [], {}
        self.found = (overlay / "kustomization.yaml").is_file()
        self.source = str(overlay)
        if self.found:
            self.read(overlay)
        self.replicas = {name: self.count(name) for name in WITHOUT_MANIFESTS} if self.found else dict(WITHOUT_MANIFESTS)
        self.services = {one["metadata"]["name"] for one in self.objects if one["kind"] == "Service"}
        for tier in ("lock-server", "payment-resource", "rail-proxy", "rail-stub"):
            if self.found and tier not in self.services:
                raise ValueError(f"{overlay}: no Service {tier}: what would its callers call?")

    def read(self, folder):
        """An overlay, its bases, its patches of `replicas`, its configuration files. Nothing else of kustomize is understood, nor needed."""
        rules = yaml.safe_load((folder / "kustomization.yaml").read_text())
        for name in [*rules.get("bases", []), *rules.get("resources", [])]:
            path = (folder / name).resolve()
            if path.is_dir():
                self.read(path)
            else:
                self.objects += [one for one in yaml.safe_load_all(path.read_text()) if one]
        for generator in rules.get("configMapGenerator", []):
            for file in generator.get("files", []):
                self.settings[generator["name"]] = flat(tomllib.loads((folder / file).read_text()))
        for name in rules.get("patchesStrategicMerge", []):
            for patch in yaml.safe_load_all((folder / name).read_text()):
                for one in self.objects:
                    same = (one["kind"], one["metadata"]["name"]) == (patch["kind"], patch["metadata"]["name"])
                    if same and "replicas" in patch.get("spec", {}):
                        one["spec"]["replicas"] = patch["spec"]["replicas"]

    def workload(self, name):
        for one in self.objects:
            if one["kind"] in ("Deployment", "StatefulSet") and one["metadata"]["name"] == name:
                return one
        raise ValueError(f"{self.source}: no workload {name}")

    def count(self, name):
        """Its replicas; where an autoscaler owns the number, the least that it keeps."""
        for one in self.objects:
            if one["kind"] == "HorizontalPodAutoscaler" and one["spec"]["scaleTargetRef"]["name"] == name:
                return one["spec"]["minReplicas"]
        return self.workload(name)["spec"]["replicas"]

    def grace(self, name):
        """How long it may take to end, in seconds."""
        return self.workload(name)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] if self.found else 45

    def at_once(self, name):
        """How many are restarted at a time: what a Deployment may have unavailable or in surplus, rounded down, at least one."""
        if not self.found:
            return 3 if name == "payout-executor" else 1
        rolling = (self.workload(name)["spec"].get("strategy") or {}).get("rollingUpdate") or {}
        allowed = str(rolling.get("maxUnavailable", 1))
        number = int(allowed[:-1]) * self.replicas[name] // 100 if allowed.endswith("%") else int(allowed)
        return max(1, number)

    def etcd_command(self, member):
        """A member's command line, with its name filled in; None without manifests."""
        if not self.found:
            return None
        container = self.workload("dlock-etcd")["spec"]["template"]["spec"]["containers"][0]
        return [part.replace("$(POD_NAME)", member) for part in [*container["command"], *container["args"]]]


def flat(table, prefix=""):
    """A TOML file's settings by their full names."""
    found = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def names(tier, count):
    """StatefulSets count from 0."""
    first = 0 if tier == "dlock-etcd" else 1
    return [f"{tier}-{number}" for number in range(first, first + count)]


def reserved_ports(count):
    """Sockets that keep free ports of loopback: bound, never listening. Chosen here, so that a container keeps its port when it is started
    again. Linux lets a listener have the same address where both allow it (SO_REUSEADDR), and gives it to nobody else that looks for one."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
    return sockets


class Topology:
    """Who runs where, and the compose file that says so."""

    def __init__(self, manifests):
        self.manifests = manifests
        self.members = {tier: names(tier, manifests.replicas[tier]) for tier in TIERS}
        self.zone, self.node = {}, {}
        for offset, tier in enumerate(TIERS):
            for index, member in enumerate(self.members[tier]):
                # Over zones first, then over a zone's nodes; tiers of two start at different zones. A member of etcd in each zone.
                place = index + (0 if tier == "dlock-etcd" else offset)
                zone = ZONES[place % len(ZONES)]
                self.zone[member] = zone
                self.node[member] = f"{zone}{(index // len(ZONES) + offset) % NODES_OF_A_ZONE + 1}"
        published = [*self.members["lock-server"], *self.members["payment-resource"], *self.members["rail-proxy"], "rail-stub"]
        # Kept for as long as the topology is.
        self.reserved = reserved_ports(len(published))
        self.port = {member: one.getsockname()[1] for member, one in zip(published, self.reserved, strict=True)}

    def url(self, member):
        return f"http://127.0.0.1:{self.port[member]}"

    def urls(self, tier):
        return [self.url(member) for member in self.members[tier]]

    def tier_of(self, member):
        return next(tier for tier, members in self.members.items() if member in members)

    def in_zone(self, zone):
        return [member for member, of in self.zone.items() if of == zone]

    def on_node(self, node):
        return [member for member, of in self.node.items() if of == node]

    def tiers_hit(self, members):
        return {self.tier_of(member) for member in members}

    def worst_zone(self):
        """The zone that takes members of the most tiers with it."""
        return max(ZONES, key=lambda zone: len(self.tiers_hit(self.in_zone(zone))))

    def worst_node(self):
        """The same of nodes; not of the zone that is cut off, where there is a choice."""
        nodes = sorted(set(self.node.values()))
        return max(nodes, key=lambda node: (len(self.tiers_hit(self.on_node(node))), node[0] != self.worst_zone()))

    def aliases(self, member):
        """The names of a member: those of its Services. A name that several share answers with all their addresses (DNS round robin)."""
        tier = self.tier_of(member)
        if tier == "dlock-etcd":
            return [member, f"{member}.{tier}", f"{member}.{tier}.dlock.svc"]
        return [member, tier] if tier in self.manifests.services or not self.manifests.found else [member]

    def settings_of(self, tier):
        """What the manifests configure, without what is the place's: where it listens, the databases' addresses and password files."""
        known = self.manifests.settings.get(tier, {})
        if not known and tier == "lock-server":
            known = {"lock.store.url": "etcd://" + ",".join(f"{name}.dlock-etcd:2379" for name in self.members["dlock-etcd"])}
        if not known and tier in ("payout-executor", "payout-reconciler"):
            known = {"executor.lock-servers": "http://lock-server:7400", "executor.payments": "http://payment-resource:7400",
                     "executor.rail-proxy": "http://rail-proxy:7400", "executor.role": "pay" if tier == "payout-executor" else "reconcile"}
        skipped = ("http.listen", "payment.store.", "rail.store.", "rail.url")
        return {name: value for name, value in known.items() if not name.startswith(skipped)}

    def command(self, tier, member, template):
        if tier == "dlock-etcd":
            made = self.manifests.etcd_command(member)
            if made:
                return made
            peers = ",".join(f"{name}=http://{name}.dlock-etcd:2380" for name in self.members[tier])
            return ["/usr/local/bin/etcd", f"--name={member}", "--data-dir=/var/lib/etcd/data", "--listen-client-urls=http://0.0.0.0:2379",
                    f"--advertise-client-urls=http://{member}.dlock-etcd:2379", "--listen-peer-urls=http://0.0.0.0:2380",
                    f"--initial-advertise-peer-urls=http://{member}.dlock-etcd:2380", f"--initial-cluster={peers}", "--max-txn-ops=1024",
                    "--heartbeat-interval=50", "--election-timeout=500"]
        settings = self.settings_of(tier)
        if tier in ("payout-executor", "payout-reconciler"):
            command = ["payout-executor", "--listen=0.0.0.0:7400", f"--owner={member}"]
            settings |= SLOWER | {"executor.reconcile.interval": SOONER["executor.reconcile.interval"]}
        elif tier == "lock-server":
            command = ["lock-server", "--listen=0.0.0.0:7400"]
        else:
            command = list(template["command"])
            if tier == "rail-proxy":
                settings["rail.visibility-horizon"] = SOONER["rail.visibility-horizon"]
        return [*command, *(f"--set={name}={value}" for name, value in sorted(settings.items()))]

    def write(self, path):
        """The compose file, from docker-compose.yml's own services. As JSON, which is YAML too."""
        whole = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
        ours = whole["services"]
        services = {name: self.bare(ours[name], name) for name in ("paydb", "migrate-pay", "rail-stub")}
        services["rail-stub"]["ports"] = [f"127.0.0.1:{self.port['rail-stub']}:7400"]
        volumes = {"paydb": None}
        for tier, members in self.members.items():
            template = ours[TEMPLATES.get(tier, tier)]
            for member in members:
                one = self.bare(template, member)
                one["command"] = self.command(tier, member, template)
                one["networks"] = {network: {"aliases": self.aliases(member)} for network in template["networks"]}
                one["labels"] = {"dlock.rehearsal.zone": self.zone[member], "dlock.rehearsal.node": self.node[member]}
                one["stop_grace_period"] = f"{self.manifests.grace(tier)}s"
                if tier.startswith("payout-"):
                    # Sessions of the product's own length: the compose file's variables would be another choice.
                    one.pop("environment", None)
                if tier == "dlock-etcd":
                    one["volumes"], volumes[member] = [f"{member}:/var/lib/etcd"], None
                if member in self.port:
                    one["ports"] = [f"127.0.0.1:{self.port[member]}:7400"]
                services[member] = one
        used = {network for one in services.values() for network in one["networks"]}
        networks = {name: value for name, value in whole["networks"].items() if name in used}
        path.write_text(json.dumps({"services": services, "networks": networks, "volumes": volumes}, indent=1))

    @staticmethod
    def bare(service, name):
        """A service without what the rehearsal does itself: order of the start, builds, probes that cost a process every five seconds."""
        kept = {key: value for key, value in service.items() if key not in ("build", "depends_on", "ports", "profiles")}
        kept["healthcheck"] = {"disable": True}
        # Paths are relative to this checkout, not to the file that is written.
        kept["volumes"] = [re.sub(r"^\./", f"{ROOT}/", volume) for volume in service.get("volumes", [])]
        kept["container_name"] = "${COMPOSE_PROJECT_NAME}-" + name
        return kept

    def summary(self):
        counts = ", ".join(f"{len(members)} {tier}" for tier, members in self.members.items())
        return f"{counts}, 1 rail-stub, 1 paydb; zones {', '.join(ZONES)} of {NODES_OF_A_ZONE} nodes each"
