"""What components say at /metrics, what the documents say about it, and whether expressions ask for what is there.

Does not own: how components are started and scraped.
"""

import re

from . import kit

METRICS_PAGE = kit.ROOT / "docs" / "metrics.md"
# What Prometheus adds to each series of a target.
OF_THE_TARGET = {"job", "instance", "endpoint"}
# Labels whose every value stands in docs/metrics.md; of the rest there are too many, and the code has them.
LISTED = {"outcome", "failure", "point", "op", "reason", "state", "verdict"}
# Series that Prometheus makes itself.
OF_PROMETHEUS = {"up": set(), "ALERTS": {"alertname", "alertstate", "severity"}}
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Family:
    """One metric of one component: its type, its help, and the values that each label has."""

    def __init__(self, kind, said):
        self.kind, self.help, self.labels = kind, said, {}


def families(text):
    """The families of one /metrics, by name."""
    found, helps = {}, {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, said = line[7:].partition(" ")
            helps[name] = said
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            found[name] = Family(kind, helps.get(name, ""))
        elif line:
            sample = SAMPLE.match(line)
            if not sample:
                raise kit.Failure(f"no sample of the text format: {line}")
            family = found.get(base(sample[1], found))
            if family is None:
                raise kit.Failure(f"{sample[1]} has no # TYPE")
            for label, value in LABEL.findall(sample[2] or ""):
                if label != "le":
                    family.labels.setdefault(label, set()).add(value)
    return found


def base(name, found):
    """The family that a series belongs to: a histogram's has suffixes."""
    for kind, suffixes in SUFFIXES.items():
        for suffix in suffixes:
            if name.endswith(suffix) and name.removesuffix(suffix) in found and found[name.removesuffix(suffix)].kind == kind:
                return name.removesuffix(suffix)
    return name


def documented():
    """docs/metrics.md, by name: type, labels, components."""
    found = {}
    for name, kind, labels, components, _unit, _meaning in kit.rows(METRICS_PAGE, 6):
        if name.startswith("`"):
            words = lambda cell: {word.strip("` ") for word in cell.split(",") if word.strip("`– ")}
            found[name.strip("`")] = (kind, words(labels), words(components))
    return found


def compare(scraped):
    """docs/metrics.md against what is there, in both directions. `scraped`: families by component."""
    page, wrong = documented(), []
    for component, found in scraped.items():
        for name, family in found.items():
            if name not in page:
                wrong.append(f"docs/metrics.md: no {name} ({component})")
                continue
            kind, labels, components = page[name]
            if kind != family.kind:
                wrong.append(f"docs/metrics.md: {name} is no {kind} but a {family.kind}")
            if component not in components:
                wrong.append(f"docs/metrics.md: {name} is on {component} as well")
            if family.labels and set(family.labels) != labels:
                wrong.append(f"docs/metrics.md: {name} of {component} has the labels {sorted(family.labels)}, not {sorted(labels)}")
            if not family.help:
                wrong.append(f"{name} of {component} has no # HELP")
    told = set(re.findall(r"`([A-Za-z_]+)`", METRICS_PAGE.read_text()))
    for name, family in ((name, family) for found in scraped.values() for name, family in found.items()):
        for label in sorted(LISTED & set(family.labels)):
            wrong += [f"docs/metrics.md: nothing of {label} {value}, which {name} has" for value in sorted(family.labels[label] - told)
                      if not name.startswith("http_")]
    for name, (_, labels, components) in page.items():
        wrong += [f"docs/metrics.md: {name} is not on {component}" for component in sorted(components)
                  if name not in scraped.get(component, {})]
        if labels and not any(name in found and found[name].labels for found in scraped.values()):
            wrong.append(f"docs/metrics.md: nothing of {name} was seen with a label")
    return wrong


def selectors(node):
    """The selectors of an expression, and the labels that it groups and matches by."""
    import promql_parser as ql

    if isinstance(node, ql.VectorSelector):
        matchers = [(matcher.name, str(matcher.op), matcher.value) for matcher in node.matchers.matchers]
        return [(node.name, matchers)], []
    if isinstance(node, ql.MatrixSelector):
        return selectors(node.vector_selector)
    children, labels = [], []
    for part in ("lhs", "rhs", "expr", "args", "param"):
        child = getattr(node, part, None)
        children += child if isinstance(child, list) else [child] if child is not None else []
    if isinstance(node, (ql.AggregateExpr, ql.BinaryExpr)) and node.modifier is not None:
        grouping = node.modifier if isinstance(node, ql.AggregateExpr) else node.modifier.matching
        labels = list(grouping.labels) if grouping is not None else []
    found = []
    for child in children:
        inner, grouped = selectors(child)
        found, labels = found + inner, labels + grouped
    return found, labels


def unknown(where, expression, scraped, recorded):
    """What an expression names that no component has: metrics, labels, values of labels."""
    import promql_parser as ql

    known, kinds = {}, {}
    for found in scraped.values():
        for name, family in found.items():
            kinds[name] = family
            for label, values in family.labels.items():
                known.setdefault(name, {}).setdefault(label, set()).update(values)
    wrong, everywhere = [], set(OF_THE_TARGET) | {"le"}
    named, grouped = selectors(ql.parse(expression))
    for name, matchers in named:
        family = base(name, kinds)
        if name in recorded:
            has = None
        elif name in OF_PROMETHEUS:
            has = {label: None for label in OF_PROMETHEUS[name]}
        elif family not in kinds or (family == name and kinds[name].kind in SUFFIXES):
            wrong.append(f"{where}: there is no metric {name}")
            continue
        else:
            has = known.get(family, {})
        everywhere |= set(has or {}) | (recorded.get(name) or set())
        for label, operator, value in matchers:
            if label in OF_THE_TARGET or label == "le" or has is None:
                continue
            if label not in has:
                wrong.append(f"{where}: {name} has no label {label}")
            elif has[label] is not None and not value.startswith("$"):
                wanted = re.compile(value) if operator in ("MatchOp.Re", "MatchOp.NotRe") else re.compile(re.escape(value))
                for alternative in value.split("|") if "Re" in operator else [value]:
                    if not any(re.fullmatch(alternative if "Re" in operator else wanted, seen) for seen in has[label]):
                        wrong.append(f"{where}: {name} has no {label} {alternative!r}; it has {sorted(has[label])}")
    wrong += [f"{where}: it groups by {label}, which nothing in it has" for label in sorted(set(grouped) - everywhere)]
    return wrong



SAMPLE_TEXT = """# HELP h_seconds A histogram.
# TYPE h_seconds histogram
h_seconds_bucket{op="a",le="1"} 1
h_seconds_bucket{op="a",le="+Inf"} 1
h_seconds_sum{op="a"} 1
h_seconds_count{op="a"} 1
# HELP c_total A counter.
# TYPE c_total counter
c_total{outcome="ok"} 1
c_total{outcome="bad"} 0
"""
RIGHT = ["c_total", 'c_total{job="x", outcome=~"ok|bad"}', "up == 0", "sum by (outcome, job) (rate(c_total[1m]))",
         'histogram_quantile(0.9, sum by (le, op) (rate(h_seconds_bucket{op="a"}[1m])))', "c_total and on (outcome) r"]
WRONG = ["d_total", "h_seconds", "c_total_sum", 'c_total{outcome="okay"}', 'c_total{outcome=~"ok|okay"}', 'c_total{result="ok"}',
         "sum by (op) (c_total)", "c_total and on (op) r", 'rate(h_seconds_count{outcome="ok"}[1m])', "c_total / d_total"]


def selftest():
    """A check that finds nothing must be one that would have found something."""
    scraped, recorded = {"x": families(SAMPLE_TEXT)}, {"r": {"outcome"}}
    for expression in RIGHT:
        if unknown("", expression, scraped, recorded):
            raise kit.Failure(f"selftest: {expression} is taken for wrong: {unknown('', expression, scraped, recorded)}")
    for expression in WRONG:
        if not unknown("", expression, scraped, recorded):
            raise kit.Failure(f"selftest: {expression} is taken for right")
    for line in ("c_total{outcome=\"ok\"} 1 2 3", "x_total 1"):
        try:
            families(line)
        except kit.Failure:
            continue
        raise kit.Failure(f"selftest: {line} is taken for a sample with its type")
