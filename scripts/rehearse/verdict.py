"""The judgement: pure functions of what was collected, so that it can be tried on facts that are wrong."""

import copy

# What no disturbance excuses. Other lines of level `error` are listed by name and number: they say what was in doubt for a while.
NEVER = {"panicked", "actor_panicked", "component_failed", "handler_failed", "double_payment_suspected", "duplicate_attempted",
         "duplicate_refused", "ledger_violated", "fencing_off", "lock_key_refused", "lock_lost_ignored", "lock_lost_callback_panicked"}
STILL_MAX_S = 30.0


def longest_gap(times, start, end):
    """The longest time between two neighbours, in seconds, where the pair overlaps the span; without a neighbour outside, the span's end is one."""
    known = sorted(times)
    if not known or known[0] > start:
        known.insert(0, start)
    if known[-1] < end:
        known.append(end)
    return max((later - earlier for earlier, later in zip(known, known[1:], strict=False) if later > start and earlier < end), default=0.0)


def judge(facts):
    """Each invariant: its name, whether it held, what was counted."""
    states, executions, legs = facts["states"], facts["executions"], facts["legs"]
    asked = facts["asked"]
    posted = [one for one in asked if states.get(one) == "POSTED"]
    failed = [one for one in asked if states.get(one) == "FAILED"]
    lost = [one for one in asked if states.get(one) not in ("POSTED", "FAILED")]
    strangers = sorted(set(states) - set(asked))
    unpaid = [one for one in posted if executions.get(one, 0) == 0]
    doubled = [one for one in states if executions.get(one, 0) > 1]
    paid_failed = [one for one in failed if executions.get(one, 0)]
    wrong_legs = [one for one in states if legs.get(one, 0) != (2 if states[one] == "POSTED" else 0)]
    highest, falling = {}, []
    for key, token in facts["grants"]:
        if token <= highest.get(key, 0):
            falling.append(f"{key}: {token} after {highest[key]}")
        highest[key] = max(token, highest.get(key, 0))
    never = {event: count for event, count in facts["errors"].items() if event in NEVER}
    still = [f"{one['name']}: {one[what]:.1f} s without {word}" for one in facts["disturbances"] for what, word in
             (("settled_gap", "a settled payout"), ("granted_gap", "a lock")) if one[what] > STILL_MAX_S]
    slow = [one["name"] for one in facts["disturbances"] if not one["healed"]]
    total = sum(executions.values())
    verify = facts["verify"]

    def said(bad, good):
        return (f"{len(bad)}: " + "; ".join(str(one) for one in list(bad)[:5])) if bad else good

    settled = f"{len(asked)} asked for, {len(posted)} POSTED, {len(failed)} FAILED"
    return [
        ("every payout asked for is settled", bool(asked) and not lost, said(lost, settled)),
        ("no payout that nobody asked for", not strangers, said(strangers, "none")),
        ("each POSTED payout was executed", not unpaid, said(unpaid, f"{len(posted)} of {len(posted)}")),
        ("none was executed twice", not doubled, said(doubled, "none")),
        ("none that FAILED was executed", not paid_failed, said(paid_failed, f"{len(failed)} FAILED")),
        ("the rail executed nothing else", facts["executed_total"] == total, f"{facts['executed_total']} in all, {total} of these payouts"),
        ("two ledger legs for each POSTED, none for others", not wrong_legs, said(wrong_legs, f"{sum(legs.values())} legs")),
        ("the ledger verifies", verify == {"ok": True, "violations": []}, str(verify)),
        ("`dlock payout list` shows the same", facts["listed"] == len(posted), f"{facts['listed']} POSTED"),
        ("tokens strictly rise for each key", bool(facts["grants"]) and not falling,
         said(falling, f"{len(facts['grants'])} grants of {len(highest)} keys in the audit trail")),
        ("no caller was refused for good", not facts["given_up"],
         said(facts["given_up"], f"{facts['retried']} calls were made again, all taken in the end")),
        ("nobody ended unbidden", not facts["exits"], said(facts["exits"], "no restart and no exit code but those asked for")),
        ("no log line that nothing excuses", not never, said([f"{event} {count}×" for event, count in never.items()], "none")),
        ("every disturbance healed", not slow, said(slow, f"{len(facts['disturbances'])} of {len(facts['disturbances'])}")),
        (f"no standstill above {STILL_MAX_S:.0f} s", not still, said(still, "none")),
    ]


SOUND = {
    "asked": ["p1", "p2", "p3"], "states": {"p1": "POSTED", "p2": "POSTED", "p3": "FAILED"}, "executions": {"p1": 1, "p2": 1, "p3": 0},
    "legs": {"p1": 2, "p2": 2, "p3": 0}, "executed_total": 2, "verify": {"ok": True, "violations": []}, "listed": 2,
    "grants": [("a", 1), ("b", 2), ("a", 3)], "given_up": [], "retried": 1, "exits": [], "errors": {"outcome_not_recorded": 1},
    "disturbances": [{"name": "node", "settled_gap": 3.0, "granted_gap": 1.0, "healed": True}],
}


def set_in(facts, path, value):
    *way, last = path
    for step in way:
        facts = facts[step]
    facts[last] = value


# One thing broken at a time, and the verdict that must notice it.
BROKEN = [
    ("every payout asked for is settled", ("states", "p1"), "CLAIMED"),
    ("every payout asked for is settled", ("states",), {"p1": "POSTED", "p3": "FAILED"}),
    ("every payout asked for is settled", ("asked",), []),
    ("no payout that nobody asked for", ("states", "p9"), "POSTED"),
    ("each POSTED payout was executed", ("executions", "p1"), 0),
    ("none was executed twice", ("executions", "p1"), 2),
    ("none that FAILED was executed", ("executions", "p3"), 1),
    ("the rail executed nothing else", ("executed_total",), 3),
    ("two ledger legs for each POSTED, none for others", ("legs", "p1"), 4),
    ("two ledger legs for each POSTED, none for others", ("legs", "p3"), 2),
    ("the ledger verifies", ("verify",), {"ok": False, "violations": ["INV-03"]}),
    ("`dlock payout list` shows the same", ("listed",), 1),
    ("tokens strictly rise for each key", ("grants",), [("a", 3), ("a", 3)]),
    ("tokens strictly rise for each key", ("grants",), [("a", 3), ("b", 1), ("a", 2)]),
    ("tokens strictly rise for each key", ("grants",), []),
    ("no caller was refused for good", ("given_up",), ["p4: 500"]),
    ("nobody ended unbidden", ("exits",), ["payout-executor-3: exit code 70"]),
    ("no log line that nothing excuses", ("errors", "panicked"), 1),
    ("every disturbance healed", ("disturbances", 0, "healed"), False),
    ("no standstill above 30 s", ("disturbances", 0, "settled_gap"), 31.0),
    ("no standstill above 30 s", ("disturbances", 0, "granted_gap"), 31.0),
]


def self_test():
    """What the judgement says of sound facts and of each broken one; the list of what it missed."""
    missed = [f"sound facts: {name}" for name, held, _ in judge(SOUND) if not held]
    for name, path, value in BROKEN:
        facts = copy.deepcopy(SOUND)
        set_in(facts, path, value)
        if name not in [one for one, held, _ in judge(facts) if not held]:
            missed.append(f"{'.'.join(str(part) for part in path)} = {value!r} is not noticed by: {name}")
    unproven = {name for name, _, _ in judge(SOUND)} - {name for name, _, _ in BROKEN}
    missed += [f"nothing proves: {name}" for name in unproven]
    gaps = [(([1, 2, 7], 0, 8), 5), (([], 0, 8), 8), (([1, 20], 0, 8), 19), (([0, 1, 2, 30], 0.5, 1.5), 1)]
    missed += [f"longest_gap{arguments} is not {gap}" for arguments, gap in gaps if longest_gap(*arguments) != gap]
    return missed
