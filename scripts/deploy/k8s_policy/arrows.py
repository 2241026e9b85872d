"""Who may reach whom: as the document says, as the policies allow, and as the configurations need."""

import functools
import re
from urllib.parse import urlsplit

import yaml

from .world import OUTSIDE, OVERLAYS, ROOT, Failure

DOCUMENT = ROOT / "docs" / "kubernetes.md"
EVERY_POD = "every pod"
# Whom a URL outside the namespace stands for, by the setting, argument or variable that holds it.
OUTSIDE_BY_SETTING = {"lock.store.url": "lockdb", "payment.store.url": "paydb", "rail.store.url": "paydb", "rail.url": "rail",
                      "LOCKDB_URL": "lockdb", "PAYDB_URL": "paydb"}


def documented(overlay, world):
    """The table of docs/kubernetes.md between its two marks, for one overlay."""
    parts = re.split(r"<!-- arrows: (?:begin|end) -->", DOCUMENT.read_text())
    if len(parts) != 3:
        raise Failure(f"{DOCUMENT.name}: no table between the marks `arrows: begin` and `arrows: end`")
    found = set()
    for line in parts[1].splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 5 or not cells[2].isdigit():
            continue
        where = OVERLAYS if cells[3] == "all" else re.findall(r"`([a-z-]+)`", cells[3])
        if not where or not set(where) <= set(OVERLAYS):
            raise Failure(f"{DOCUMENT.name}: an arrow's overlays are `all` or names of overlays, not {cells[3]}")
        if overlay not in where:
            continue
        sources = [workload.name for workload in world.workloads] if cells[0] == EVERY_POD else re.findall(r"`([a-z-]+)`", cells[0])
        targets = re.findall(r"`([a-z-]+)`", cells[1])
        if not sources or not targets:
            raise Failure(f"{DOCUMENT.name}: an arrow without an end: {line}")
        found |= {(source, target, int(cells[2])) for source in sources for target in targets}
    if not found:
        raise Failure(f"{DOCUMENT.name}: no arrow for {overlay}")
    return found


def allowed(world):
    """What the policies let through, and what is wrong with them: halves without the other one, peers without a name, all ports."""
    into, out, wrong = set(), set(), []
    for policy in world.of("NetworkPolicy"):
        name, spec = policy["metadata"]["name"], policy["spec"]
        outside = (policy["metadata"].get("annotations") or {}).get(OUTSIDE)
        mine = [workload.name for workload in world.selected(spec.get("podSelector"))]
        for kind, key, halves in (("ingress", "from", into), ("egress", "to", out)):
            for rule in spec.get(kind) or []:
                if not rule.get(key) or not rule.get("ports"):
                    wrong.append(f"policy {name}: a rule without peers or ports allows all of them")
                    continue
                ports = {port["port"] for port in rule["ports"]}
                for peer in rule[key]:
                    if "ipBlock" in peer or "namespaceSelector" in peer:
                        if not outside:
                            wrong.append(f"policy {name}: a peer outside the namespace, and no annotation {OUTSIDE} that names it")
                            continue
                        others = [outside]
                    else:
                        others = [workload.name for workload in world.selected(peer.get("podSelector"))]
                    for one in mine:
                        for other in others:
                            pair = (other, one) if kind == "ingress" else (one, other)
                            halves.update((*pair, port) for port in ports)
    names = {workload.name for workload in world.workloads}
    inside = {arrow for arrow in into | out if {arrow[0], arrow[1]} <= names}
    for source, target, port in sorted(inside - into, key=str):
        wrong.append(f"{source} may go to {target}:{port}, which does not let it in")
    for source, target, port in sorted(inside - out, key=str):
        wrong.append(f"{target}:{port} lets {source} in, which may not go there")
    return ((into | out) - inside) | (into & out & inside), wrong


def urls(world, workload):
    """(what holds it, URL) of each address that the process is told."""
    found = [(name, value) for name, value in world.settings(workload).items() if isinstance(value, str) and "://" in value]
    found += [(name, value) for name, value in world.environment(workload).items() if "://" in value]
    for word in workload.main.get("args") or []:
        match = re.fullmatch(r"--(ack-url)=(\S+://\S+)", word)
        if match:
            found.append(match.groups())
    return found


def endpoints(url):
    """(host, port) of each address of a URL; etcd's lists several."""
    parts = urlsplit(url)
    default = {"http": 80, "https": 443, "postgres": 5432, "postgresql": 5432}.get(parts.scheme)
    for place in parts.netloc.rpartition("@")[2].split(","):
        host, _, port = place.partition(":")
        yield host, int(port) if port else default


def needed(world):
    """What the configurations name, what each pod needs anyway, and who is to be scraped; and what names nobody."""
    found, wrong = set(), []
    for workload in world.workloads:
        found.add((workload.name, "dns", 53))
        for setting, url in urls(world, workload):
            for host, port in endpoints(url):
                service = world.find("Service", host.split(".")[1 if host.startswith("dlock-etcd-") else 0])
                if service is not None:
                    for target in world.selected({"matchLabels": service["spec"]["selector"]}):
                        found.add((workload.name, target.name, port))
                    if port not in {each["port"] for each in service["spec"]["ports"]}:
                        wrong.append(f"{workload.name}: {setting} asks for {host}:{port}, a port that the Service does not have")
                elif setting in OUTSIDE_BY_SETTING and "." in host:
                    found.add((workload.name, OUTSIDE_BY_SETTING[setting], port))
                else:
                    wrong.append(f"{workload.name}: {setting} names {host}, which is no Service here")
        if workload.kind == "StatefulSet":
            peer = {port["name"]: port["containerPort"] for port in workload.main["ports"]}.get("peer")
            found.add((workload.name, workload.name, peer))
    for monitoring in world.of("PodMonitoring"):
        for workload in world.selected(monitoring["spec"]["selector"]):
            ports = {port.get("name"): port["containerPort"] for port in workload.main.get("ports") or []}
            for endpoint in monitoring["spec"]["endpoints"]:
                if endpoint["port"] in ports:
                    found.add(("scraper", workload.name, ports[endpoint["port"]]))
    return found, wrong


def addresses(world):
    """Policies that let out to an address, against the URLs: (policy's name, whom it is for, its addresses, addresses in URLs)."""
    for policy in world.of("NetworkPolicy"):
        outside = (policy["metadata"].get("annotations") or {}).get(OUTSIDE)
        blocks = {peer["ipBlock"]["cidr"] for rule in policy["spec"].get("egress") or [] for peer in rule.get("to") or []
                  if "ipBlock" in peer}
        if blocks and outside != "dns":
            said = {host for workload in world.selected(policy["spec"]["podSelector"]) for setting, url in urls(world, workload)
                    for host, _ in endpoints(url) if OUTSIDE_BY_SETTING.get(setting) == outside}
            yield policy["metadata"]["name"], outside, blocks, said


@functools.cache
def compose_networks():
    """Service of docker-compose.yml → the networks it is on."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return {name: set(service["networks"]) for name, service in services.items()}


# The same part in the compose file. Whoever is not here has none there: the console, the peers of etcd's members, names, a real rail.
IN_COMPOSE = {"lock-server": "lock-server-1", "payment-resource": "payment-resource", "rail-proxy": "rail-proxy", "rail-stub": "rail-stub",
              "payout-executor": "payout-executor-1", "payout-reconciler": "payout-executor-1", "scraper": "prometheus",
              "migrate-lock": "migrate-lock", "migrate-pay": "migrate-pay", "lockdb": "lockdb", "paydb": "paydb"}


def against_compose(arrows):
    """Arrows between two who share no network in docker-compose.yml, where both are there."""
    networks = compose_networks()
    for source, target, port in sorted(arrows, key=str):
        pair = [IN_COMPOSE.get(source), IN_COMPOSE.get(target)]
        if None not in pair and not networks[pair[0]] & networks[pair[1]]:
            yield f"{source} → {target}:{port}, but in docker-compose.yml {pair[0]} and {pair[1]} share no network"


