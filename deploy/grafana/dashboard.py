#!/usr/bin/env python3
"""Writes deploy/grafana/dlock.json, the dashboard that Grafana imports: rows, panels and their queries stand here.

    deploy/grafana/dashboard.py            write the file
    deploy/grafana/dashboard.py --check    is the file what this writes? Exit code 1 when not

Every query takes the variables `component` (the job) and `instance`; the data source is a variable as well. In a query SEL stands
for the two, RATE for Grafana's own window.
"""

import json
import pathlib
import sys

FILE = pathlib.Path(__file__).with_name("dlock.json")
SEL = 'job=~"$component", instance=~"$instance"'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24

# title, unit, kind, queries (expression, legend), and the least that is bad where there is such a value.
# kind: stat shows the latest value, series its course, table one line for each series.
ROWS = [
    ("Money", [
        ("Duplicates attempted", "none", "stat", [("sum(rail_duplicate_attempted_total{SEL})", "duplicates")], 1),
        ("Fences that are off", "none", "stat", [("count(fencing_enabled{SEL}) - sum(fencing_enabled{SEL})", "off")], 1),
        ("Ambiguous past the SLA", "none", "stat", [("max(payout_escalated{SEL})", "payouts")], 1),
        ("Exceptions of the rail", "none", "stat", [("max(rail_exceptions_open{SEL})", "open")], 1),
        ("Oldest payout that could be paid", "s", "series", [("max(payout_backlog_age_seconds{SEL})", "age")], 300),
        ("Oldest ambiguous payout", "s", "series", [
            ("max by (job) (rail_ambiguous_age_seconds{SEL})", "{{job}}"),
            ("max(payout_ambiguous_sla_seconds{SEL})", "SLA")], None),
        ("Stale writes refused", "cps", "series", [("sum by (point) (rate(lock_fenced_out_total{SEL}[RATE]))", "{{point}}")], None),
    ]),
    ("Locks", [
        ("Acquires by outcome", "cps", "series", [("sum by (outcome) (rate(lock_acquire_total{SEL}[RATE]))", "{{outcome}}")], None),
        ("Acquires that fail", "percentunit", "stat", [("service:lock_acquire_error_ratio:rate5m", "of all")], 0.01),
        ("Duration of an acquire, waiting included", "s", "series", [
            ("histogram_quantile(0.5, sum by (le) (rate(lock_acquire_duration_seconds_bucket{SEL}[RATE])))", "p50"),
            ("histogram_quantile(0.99, sum by (le) (rate(lock_acquire_duration_seconds_bucket{SEL}[RATE])))", "p99")], 0.05),
        ("Time in the queue of granted acquires", "s", "series", [
            ("histogram_quantile(0.99, sum by (le) (rate(lock_wait_duration_seconds_bucket{SEL}[RATE])))", "p99")], None),
        ("Keys held", "none", "series", [("max(lock_held{SEL})", "held")], None),
        ("Sessions", "none", "series", [("max(lock_sessions{SEL})", "sessions")], None),
        ("Leases that ran out, or were broken", "cps", "series", [
            ("sum(rate(lock_expired_total{SEL}[RATE]))", "expired"),
            ("sum(rate(lock_revoked_total{SEL}[RATE]))", "revoked")], None),
        ("Locks lost by their holders", "cps", "series", [("sum by (reason) (rate(lock_lost_total{SEL}[RATE]))", "{{reason}}")], None),
        ("Heartbeats that failed", "cps", "series", [
            ("sum by (instance) (rate(lock_heartbeat_failures_total{SEL}[RATE]))", "{{instance}}")], None),
        ("Doubt about the tokens", "none", "stat", [("max(lock_token_regression{SEL})", "doubt")], 1),
    ]),
    ("Payouts", [
        ("Payouts by state", "none", "series", [("max by (state) (payout_state{SEL})", "{{state}}")], None),
        ("Steps by outcome", "cps", "series", [
            ("sum by (step, outcome) (rate(payout_steps_total{SEL}[RATE])) > 0", "{{step}} {{outcome}}")], None),
        ("From creation to the end", "s", "series", [
            ("histogram_quantile(0.5, sum by (le) (rate(payout_duration_seconds_bucket{SEL}[RATE])))", "p50"),
            ("histogram_quantile(0.99, sum by (le) (rate(payout_duration_seconds_bucket{SEL}[RATE])))", "p99")], None),
        ("Workers: how payouts were put down", "cps", "series", [
            ("sum by (outcome) (rate(executor_payout_duration_seconds_count{SEL}[RATE]))", "{{outcome}}")], None),
        ("Workers: time in hand", "s", "series", [
            ("histogram_quantile(0.99, sum by (le) (rate(executor_payout_duration_seconds_bucket{SEL}[RATE])))", "p99")], None),
        ("Look-ups of ambiguous payouts", "cps", "series", [
            ("sum by (verdict) (rate(executor_lookups_total{SEL}[RATE]))", "{{verdict}}")], None),
    ]),
    ("Rail", [
        ("Submissions by outcome", "cps", "series", [("sum by (outcome) (rate(rail_submissions_total{SEL}[RATE]))", "{{outcome}}")], None),
        ("Submissions that timed out", "percentunit", "series", [
            ('sum(rate(rail_submissions_total{outcome="timeout", SEL}[RATE])) / (sum(rate(rail_submissions_total{SEL}[RATE])) > 0)',
             "of all")], None),
        ("Submissions in hand", "none", "series", [('sum(actor_alive{actor="rail_submission", SEL})', "submissions")], None),
    ]),
    ("Actors", [
        ("Live actors", "none", "series", [("sum by (actor) (actor_alive{SEL})", "{{actor}}")], None),
        ("Messages waiting", "none", "series", [("sum by (actor) (actor_mailbox_depth{SEL})", "{{actor}}")], None),
        ("How full mailboxes are", "percentunit", "series", [
            ("max by (actor) (instance:actor_mailbox_fill:ratio{SEL})", "{{actor}}")], 0.8),
        ("Refused by full mailboxes", "cps", "series", [("sum by (actor) (rate(actor_mailbox_full_total{SEL}[RATE]))", "{{actor}}")], None),
        ("Restarts", "cps", "series", [("sum by (actor) (rate(actor_restarts_total{SEL}[RATE]))", "{{actor}}")], None),
        ("Time in a handler, p99", "s", "series", [
            ("histogram_quantile(0.99, sum by (actor, le) (rate(actor_handle_duration_seconds_bucket{SEL}[RATE])))", "{{actor}}")], None),
    ]),
    ("Stores", [
        ("Lock store: a call, p99", "s", "series", [
            ("histogram_quantile(0.99, sum by (op, le) (rate(lock_store_duration_seconds_bucket{SEL}[RATE])))", "{{op}}")], 0.05),
        ("Lock store: items a call", "none", "series", [
            ("sum by (op) (rate(lock_store_batch_size_sum{SEL}[RATE])) / sum by (op) (rate(lock_store_batch_size_count{SEL}[RATE]))",
             "{{op}}")], None),
        ("Calls that failed", "cps", "series", [
            ("sum by (op, failure) (rate(lock_store_errors_total{SEL}[RATE]))", "lock {{op}} {{failure}}"),
            ("sum by (op) (rate(payment_store_errors_total{SEL}[RATE]))", "payment {{op}}"),
            ("sum by (op) (rate(rail_store_errors_total{SEL}[RATE]))", "rail {{op}}")], None),
    ]),
    ("HTTP", [
        ("Requests by outcome", "reqps", "series", [("sum by (job, outcome) (rate(http_requests_total{SEL}[RATE])) > 0", "{{job}} {{outcome}}")], None),
        ("Time to an answer, p99", "s", "series", [
            ("histogram_quantile(0.99, sum by (job, le) (rate(http_request_duration_seconds_bucket{SEL}[RATE])))", "{{job}}")], None),
        ("In flight", "none", "series", [("sum by (job, instance) (http_requests_in_flight{SEL})", "{{job}} {{instance}}")], None),
    ]),
    ("Build and processes", [
        ("What runs", "none", "table", [("build_info{SEL}", "{{instance}}")], None),
        ("Up", "none", "series", [("up{SEL}", "{{job}} {{instance}}")], None),
        ("Memory", "bytes", "series", [("process_resident_memory_bytes{SEL}", "{{job}} {{instance}}")], None),
        ("Processor", "none", "series", [("rate(process_cpu_seconds_total{SEL}[RATE])", "{{job}} {{instance}}")], None),
        ("Open files", "percentunit", "series", [("process_open_fds{SEL} / process_max_fds{SEL}", "{{job}} {{instance}}")], 0.8),
    ]),
]


def steps(bad):
    ok = {"color": "green", "value": None}
    return [ok] if bad is None else [ok, {"color": "red", "value": bad}]


def panel(number, title, unit, kind, queries, bad, at):
    shape = {"stat": ("stat", 6, 4), "series": ("timeseries", 8, 8), "table": ("table", 16, 8)}[kind]
    targets = []
    for letter, (expression, legend) in zip("ABCDEF", queries):
        written = expression.replace("SEL", SEL).replace("RATE", "$__rate_interval")
        target = {"refId": letter, "datasource": SOURCE, "expr": written, "legendFormat": legend}
        if kind != "series":
            target.update({"instant": True, "range": False})
        if kind == "table":
            target["format"] = "table"
        targets.append(target)
    defaults = {"unit": unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps(bad)}}
    options = {}
    if kind == "series":
        defaults["custom"] = {"thresholdsStyle": {"mode": "off" if bad is None else "line"}, "fillOpacity": 5}
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    if kind == "stat":
        options = {"colorMode": "background", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return {
        "id": number, "type": shape[0], "title": title, "datasource": SOURCE, "targets": targets, "options": options,
        "gridPos": {"x": at[0], "y": at[1], "w": shape[1], "h": shape[2]},
        "fieldConfig": {"defaults": defaults, "overrides": []},
    }


def panels():
    made, number, y = [], 0, 0
    for row, contents in ROWS:
        number += 1
        made.append({"id": number, "type": "row", "title": row, "collapsed": False, "panels": [],
                     "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}})
        x, y, tallest = 0, y + 1, 0
        for content in contents:
            number += 1
            placed = panel(number, *content, (x, y))
            where = placed["gridPos"]
            if x + where["w"] > WIDTH:
                x, y, tallest = 0, y + tallest, 0
                where.update({"x": x, "y": y})
            x, tallest = x + where["w"], max(tallest, where["h"])
            made.append(placed)
        y += tallest
    return made


def variable(name, label, query):
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": name},
        "definition": query, "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".+",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def dashboard():
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}
    return {
        "uid": "dlock", "title": "dlock", "tags": ["dlock"], "schemaVersion": 39, "version": 1, "editable": True,
        "description": "Locks, fences, payouts and the rail. Written by deploy/grafana/dashboard.py; alerts: docs/alerts.md.",
        "refresh": "10s", "time": {"from": "now-30m", "to": "now"}, "timezone": "utc", "graphTooltip": 1,
        "templating": {"list": [
            source,
            variable("component", "Component", "label_values(build_info, job)"),
            variable("instance", "Instance", 'label_values(build_info{job=~"$component"}, instance)'),
        ]},
        "annotations": {"list": [{
            "name": "Alerts", "datasource": SOURCE, "enable": True, "iconColor": "red",
            "expr": 'ALERTS{alertname=~"Dlock.+", alertstate="firing"}', "titleFormat": "{{alertname}}",
        }]},
        "panels": panels(),
    }


def main():
    text = json.dumps(dashboard(), indent=1) + "\n"
    if sys.argv[1:] == ["--check"]:
        same = FILE.exists() and FILE.read_text() == text
        print(f"{FILE.name} is {'what dashboard.py writes' if same else 'not what dashboard.py writes: run it'}")
        return 0 if same else 1
    if sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 64
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
