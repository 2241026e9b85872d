"""The project's configuration, rules and dashboard in a real Prometheus that scrapes `dlock up`; then a fence falls, and it pages.

Owns: the processes that it starts, their folder and ports. Does not own: what the rules and queries are.
On failure: says what did not come, with the end of the process's output; everything it started is ended.
"""

import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

from . import kit, scrape, static

# Generous: on an idle machine each takes a few seconds.
WITHIN = 120
JOBS = {"lock-server": 1, "payment-resource": 1, "rail-proxy": 1, "payout-executor": 2, "prometheus": 1}
# The ports of `dlock up`, then a rail proxy without its fence, then Prometheus.
PORTS = 9


def reserved_ports():
    """The first of PORTS free ports in a row on loopback, and the sockets that keep them: bound, never listening. Linux lets a listener have
    the same address where both allow it (SO_REUSEADDR), and gives it to nobody else that looks for a free one."""
    for _ in range(200):
        first = random.randrange(20000, 32000 - PORTS)
        held = []
        try:
            for port in range(first, first + PORTS):
                held.append(socket.socket())
                held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held[-1].bind(("127.0.0.1", port))
            return first, held
        except OSError:
            for one in held:
                one.close()
    raise kit.Failure(f"no {PORTS} free ports in a row")


class Process:
    """A child that ends with this check; its output goes to a file, whose end is shown when it falls."""

    def __init__(self, folder, name, command, stop=signal.SIGTERM, settings=None):
        self.name, self.log, self.stop_by = name, pathlib.Path(folder) / f"{name}.out", stop
        clean = {key: value for key, value in os.environ.items() if not key.startswith("DLOCK_")}
        with self.log.open("w") as out:
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**clean, **(settings or {})})

    def must_live(self):
        if self.child.poll() is not None:
            said = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
            raise kit.Failure(f"{self.name} has ended with {self.child.returncode}:\n{said}")

    def end(self):
        if self.child.poll() is None:
            self.child.send_signal(self.stop_by)
            try:
                self.child.wait(30)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


class Prometheus:
    """The HTTP API of one."""

    def __init__(self, address):
        self.base = f"http://{address}/api/v1"

    def ask(self, path, **parameters):
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        try:
            return json.loads(get(f"{self.base}/{path}{query}"))["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                raise  # It is starting, or busy: `until` asks again.
            raise kit.Failure(f"{path} {parameters}: {json.loads(error.read())['error']}") from None

    def query(self, expression):
        return self.ask("query", query=expression)["result"]

    def alerts(self):
        return self.ask("alerts")["alerts"]

    def firing(self):
        """Those that fire; a busy machine may bring others to the point where they would, if it went on."""
        return [alert for alert in self.alerts() if alert["state"] == "firing"]


def until(what, look, *processes):
    """Waits until `look` answers something true and returns it. What it saw last is in the failure."""
    end, last = time.monotonic() + WITHIN, None
    while time.monotonic() < end:
        for process in processes:
            process.must_live()
        try:
            seen = look()
            if isinstance(seen, tuple):
                done, last = seen
            else:
                done = last = seen
            if done:
                return done
        except (OSError, urllib.error.URLError) as error:
            last = error
        time.sleep(0.25)
    raise kit.Failure(f"not within {WITHIN} s: {what}; last seen: {last}")


def configuration(folder, targets, own):
    """The project's prometheus.yml with other targets: what `dlock up` says it serves, and this Prometheus itself."""
    import yaml

    written = yaml.safe_load((kit.PROMETHEUS / "prometheus.yml").read_text())
    written["rule_files"] = [str(kit.PROMETHEUS / name) for name in written["rule_files"]]
    targets = {**targets, "prometheus": [own]}
    for job in written["scrape_configs"]:
        for static_config in job.get("static_configs", []):
            static_config["targets"] = targets.pop(job["job_name"])
    if targets:
        raise kit.Failure(f"prometheus.yml has no job for {sorted(targets)}")
    path = pathlib.Path(folder) / "prometheus.yml"
    path.write_text(yaml.safe_dump(written))
    return path


def all_up(prometheus, expected):
    active = prometheus.ask("targets")["activeTargets"]
    seen = {}
    for target in active:
        seen.setdefault(target["labels"]["job"], []).append(target["health"])
    good = all(seen.get(job) == ["up"] * count for job, count in expected.items()) and set(seen) == set(expected)
    return good, [(target["labels"]["instance"], target["health"], target["lastError"]) for target in active]


def rules_ran(prometheus):
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    bad = [(rule["name"], rule["health"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"]
    return not bad and len(rules) == len(kit.rules()), bad


def check_metrics(tools, targets):
    """promtool's lint, and docs/metrics.md against what the components say."""
    scraped = {}
    for job, addresses in targets.items():
        for address in addresses:
            text = get(f"http://{address}/metrics")
            said = tools.promtool("check", "metrics", text=text)
            if said:
                raise kit.Failure(f"promtool check metrics of {job}:\n{said}")
            found = scrape.families(text)
            for name, family in scraped.setdefault(job, found).items():
                for label, values in found.get(name, family).labels.items():
                    family.labels.setdefault(label, set()).update(values)
    return scraped


def check_expressions(prometheus, scraped):
    """Each expression asks for what exists, is answered, and has data where something must be shown."""
    recorded = {rule["record"]: set() for rule in kit.rules() if "record" in rule}
    for name, labels in recorded.items():
        for series in prometheus.query(name):
            labels.update(series["metric"])
    # What was not recorded yet has no labels that could be looked for.
    late = sorted(name for name, labels in recorded.items() if not labels)
    if late:
        return False, late
    wrong, empty = [], []
    for where, expression in static.expressions():
        wrong += scrape.unknown(where, expression, scraped, recorded)
        result = prometheus.query(expression)
        if where.startswith(kit.DASHBOARD.name) and not result:
            empty.append(where)
    if wrong:
        raise kit.Failure("\n".join(wrong))
    return not empty, empty


def a_fence_falls(prometheus, prom, up, dlock, folder, targets, own, first):
    """A second rail proxy, of the lab, without its fence: it pages at once and says where. Then it is gone, and that is seen too."""
    store, address = pathlib.Path(folder) / "heedless", f"127.0.0.1:{first + 8}"
    store.mkdir()
    command = [dlock, "rail-proxy", "--listen", address, "--store", f"sqlite:{store}", "--rail", f"http://127.0.0.1:{first + 3}"]
    heedless = Process(folder, "rail-proxy-without-fence", command, settings={"DLOCK_RAIL_FENCING_ENABLED": "false"})
    try:
        until("the rail proxy without its fence serves", lambda: get(f"http://{address}/livez"), heedless)
        configuration(folder, {**targets, "rail-proxy": [*targets["rail-proxy"], address]}, own)
        prom.child.send_signal(signal.SIGHUP)

        def fires():
            seen = prometheus.alerts()
            return [alert for alert in seen if alert["labels"]["alertname"] == "DlockFenceOff" and alert["state"] == "firing"], seen

        fired = until("DlockFenceOff fires", fires, heedless, prom, up)
        labels, notes = fired[0]["labels"], fired[0]["annotations"]
        wanted = {"instance": address, "job": "rail-proxy", "point": "rail", "severity": "page"}
        if len(fired) != 1 or not wanted.items() <= labels.items():
            raise kit.Failure(f"DlockFenceOff fires for {fired}, not once for {wanted}")
        if address not in notes["description"] or any("<" in note or "%!" in note for note in notes.values()):
            raise kit.Failure(f"its notes are not written out: {notes}")
        others = {alert["labels"]["alertname"] for alert in prometheus.firing()} - {"DlockFenceOff"}
        if others:
            raise kit.Failure(f"with the fence of another proxy off these fire as well: {sorted(others)}")
    finally:
        heedless.end()

    def down_is_seen():
        seen = [(alert["labels"]["alertname"], alert["labels"].get("instance")) for alert in prometheus.alerts()]
        return ("DlockTargetDown", address) in seen and not any(name == "DlockFenceOff" for name, _ in seen), seen

    until("the dead proxy is seen as down, and its fence no longer as off", down_is_seen, prom, up)
    return notes["summary"]


def check(tools, dlock, folder):
    """Raises what is wrong; yields what was seen, in a line each."""
    first, held = reserved_ports()
    own = f"127.0.0.1:{first + 7}"
    up = Process(folder, "dlock-up", [dlock, "up", "--dir", f"{folder}/up", "--base-port", str(first)], signal.SIGINT)
    prom = None
    try:
        listed = pathlib.Path(folder) / "up" / "prometheus-targets.json"
        groups = until("dlock up lists its targets", lambda: listed.exists() and listed.read_text().endswith("\n")
                       and json.loads(listed.read_text()), up)
        targets = {group["labels"]["job"]: group["targets"] for group in groups}
        config = configuration(folder, targets, own)
        data = pathlib.Path(folder) / "data"
        data.mkdir()
        prom = Process(folder, "prometheus", tools.command(
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address={own}", "--log.level=warn"))
        prometheus = Prometheus(own)
        until("every target is up", lambda: all_up(prometheus, JOBS), prom, up)
        yield f"Prometheus scrapes {sum(map(len, targets.values()))} components and itself; all are up"
        until("every rule was evaluated and is in order", lambda: rules_ran(prometheus), prom, up)
        # What is counted only once something was paid is there from here on.
        until("a payout is posted", lambda: prometheus.query('payout_state{state="POSTED"} > 0'), prom, up)
        scraped = check_metrics(tools, targets)
        wrong = scrape.compare(scraped)
        if wrong:
            raise kit.Failure("\n".join(wrong))
        names = {name for found in scraped.values() for name in found}
        yield f"promtool check metrics has nothing to say of {len(names)} metrics; docs/metrics.md says the same of them"
        until("every query of the dashboard has data", lambda: check_expressions(prometheus, scraped), prom, up)
        yield f"{len(static.expressions())} expressions name only what exists and are answered; every panel has data"
        fired = prometheus.firing()
        if fired:
            raise kit.Failure(f"on a healthy system there are alerts: {fired}")
        yield "no alert fires on a healthy system"
        said = a_fence_falls(prometheus, prom, up, dlock, folder, targets, own, first)
        yield f"a rail proxy without its fence pages at once: {re.sub(r' +', ' ', said)}"
    finally:
        for process in (prom, up):
            if process is not None:
                process.end()
        for one in held:
            one.close()
