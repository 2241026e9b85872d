"""What can be checked without a running system: the configuration, the rules, their tests, the page of alerts, the dashboard's file."""

import json
import re
import subprocess
import sys

from . import kit, scrape

SEVERITIES = {"page", "ticket"}
ALERTS_PAGE = kit.ROOT / "docs" / "alerts.md"
# What the section of an alert says, in this order.
PARTS = ["**Meaning.**", "**First look.**", "**What to do.**"]


def alerts_are_complete(alerts):
    wrong = []
    for rule in alerts:
        name, notes = rule["alert"], rule.get("annotations", {})
        if not re.fullmatch(r"Dlock[A-Z][A-Za-z]+", name):
            wrong.append(f"{name}: the name does not begin with Dlock")
        if rule.get("labels", {}).get("severity") not in SEVERITIES:
            wrong.append(f"{name}: its severity is none of {sorted(SEVERITIES)}")
        wrong += [f"{name}: no {note}" for note in ("summary", "description", "runbook_url") if not notes.get(note, "").strip()]
        if notes.get("runbook_url") != f"docs/alerts.md#{name.lower()}":
            wrong.append(f"{name}: its runbook_url is not docs/alerts.md#{name.lower()}")
    names = [rule["alert"] for rule in alerts]
    wrong += [f"{name} stands twice" for name in sorted({name for name in names if names.count(name) > 1})]
    return wrong


def page_has_every_alert(alerts):
    """Each alert has its section in docs/alerts.md with its severity and its three parts, and each section its alert."""
    wrong, sections = [], {}
    for section in re.split(r"^### ", ALERTS_PAGE.read_text(), flags=re.M)[1:]:
        title, _, body = section.partition("\n")
        sections[title.strip()] = re.split(r"^## ", body, flags=re.M)[0]
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in alerts}
    for name in sorted(set(severities) | set(sections)):
        if name not in sections:
            wrong.append(f"docs/alerts.md: no section ### {name}")
        elif name not in severities:
            wrong.append(f"docs/alerts.md: {name} is no alert")
        else:
            places = [sections[name].find(part) for part in PARTS]
            if -1 in places or places != sorted(places):
                wrong.append(f"docs/alerts.md: {name} does not say {', '.join(PARTS)} in this order")
            if not sections[name].lstrip().startswith(f"Severity: {severities[name]}"):
                wrong.append(f"docs/alerts.md: {name} does not begin with its severity, {severities[name]}")
    return wrong


def tests_cover(alerts):
    """Each alert has a promtool test in which it is quiet, and one in which it fires."""
    import yaml

    seen = {}
    for path in sorted(kit.PROMETHEUS.glob("tests/*.yml")):
        for test in yaml.safe_load(path.read_text())["tests"]:
            for check in test.get("promql_expr_test", []):
                named = re.search(r'ALERTS\{alertname="(\w+)", alertstate="firing"\}', check["expr"])
                if named:
                    seen.setdefault(named[1], set()).add(bool(check["exp_samples"]))
    wrong = []
    for name in sorted({rule["alert"] for rule in alerts} | set(seen)):
        wrong += [f"{name}: no promtool test in which it {what}" for fires, what in ((True, "fires"), (False, "is quiet"))
                  if fires not in seen.get(name, set())]
    return wrong


def expressions():
    """Every expression of the rules and the dashboard, as (where, expression); the dashboard's with its variables filled in."""
    found = [(f"{rule['file']} {rule.get('alert') or rule['record']}", rule["expr"]) for rule in kit.rules()]
    for panel in json.loads(kit.DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            filled = target["expr"].replace("$component", ".+").replace("$instance", ".+").replace("$__rate_interval", "1m")
            found.append((f"dlock.json {panel['title']}", filled))
    return found


def check(tools):
    """Raises what is wrong; returns what was looked at, in a line each."""
    scrape.selftest()
    alerts = [rule for rule in kit.rules() if "alert" in rule]
    tests = sorted(str(path) for path in kit.PROMETHEUS.glob("tests/*.yml"))
    tools.promtool("check", "config", str(kit.PROMETHEUS / "prometheus.yml"))
    tools.promtool("check", "rules", "--lint=all", "--lint-fatal", *sorted(str(path) for path in kit.PROMETHEUS.glob("rules/*.yml")))
    tools.promtool("test", "rules", *tests)
    wrong = alerts_are_complete(alerts) + page_has_every_alert(alerts) + tests_cover(alerts)
    written = subprocess.run([sys.executable, kit.DASHBOARD.with_name("dashboard.py"), "--check"], capture_output=True, text=True, check=False)
    if written.returncode != 0:
        wrong.append(written.stdout.strip() + written.stderr.strip())
    if wrong:
        raise kit.Failure("\n".join(wrong))
    return [f"promtool takes the configuration and {len(kit.rules())} rules; {len(tests)} files of rule tests pass",
            f"{len(alerts)} alerts have a severity, notes, a section in docs/alerts.md, a test that fires and one that does not"]
