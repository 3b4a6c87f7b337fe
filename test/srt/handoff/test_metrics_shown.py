"""Documents, dashboard and alerts name the metrics that there are, and show all of them."""

import json
import re
from pathlib import Path

import pytest
import yaml
from sglang.srt.disaggregation.handoff import metrics as m
from sglang.srt.disaggregation.handoff import record, stages
from sglang.srt.disaggregation.handoff.deadlines import DECODE_DEADLINES, PREFILL_DEADLINES
from sglang.srt.managers import scheduler_handoff_observability_mixin as mixin
from sglang.srt.observability.req_time_stats import RequestStageConfig

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs/seamless_handoff.md").read_text()
MONITORING = ROOT / "examples/monitoring"
DASHBOARD = json.loads((MONITORING / "grafana/dashboards/json/seamless-handoff-dashboard.json").read_text())
ALERTS = yaml.safe_load((MONITORING / "seamless-handoff-alerts.yaml").read_text())
NAMES = {metric.name: metric for metric in m.METRICS}
SUFFIXES = ("_bucket", "_sum", "_count")


def dashboard_queries():
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return targets + [v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]


def alert_queries():
    return [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]


def metric_of(name):
    """The metric that a sample's name belongs to."""
    for suffix in SUFFIXES:
        base = name.removesuffix(suffix)
        if base != name and base in NAMES and NAMES[base].kind == m.HISTOGRAM:
            return base
    assert name not in NAMES or NAMES[name].kind != m.HISTOGRAM, f"{name} has no samples of its own"
    return name


def handoff_metrics(queries):
    return {metric_of(name) for query in queries for name in re.findall(r"sglang:handoff_\w+", query)}


def test_the_table_is_the_code():
    rows = re.findall(r"^\| `(sglang:\w+)` \| (\w+) \| (.*?) \|", DOCUMENT, re.MULTILINE)
    table = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(rows) == len(table)
    assert table == {metric.name: (metric.kind, metric.labels) for metric in m.METRICS}


def test_the_document_names_milestones_stages_deadlines_and_alerts():
    section = DOCUMENT.split("## Metrics and milestones")[1].split("\n## ")[0]
    words = set(re.findall(r"\w+", section))
    assert words >= {*record.PREFILL_MILESTONES, *record.DECODE_MILESTONES}
    assert words >= {*PREFILL_DEADLINES, *DECODE_DEADLINES}
    assert words >= {s.stage_name for s in vars(stages).values() if isinstance(s, RequestStageConfig)}
    alerts = [rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]]
    assert re.findall(r"^\| `(Handoff\w+)` \|", section, re.MULTILINE) == alerts


def test_the_dashboard_shows_every_metric_and_no_other():
    assert handoff_metrics(dashboard_queries()) == set(NAMES)


def test_alerts_name_metrics_that_there_are():
    used = handoff_metrics(alert_queries())
    assert used and used <= set(NAMES)
    assert all("sglang:handoff_" in query for query in alert_queries())


@pytest.mark.parametrize("queries", [dashboard_queries, alert_queries])
def test_queries_use_labels_that_there_are(queries):
    ours = {label for metric in m.METRICS for label in metric.labels}
    known = ours | {"model_name", "engine_type", "instance", "stage", "le", "is_streaming"}
    for query in queries():
        selectors = re.findall(r"\{([^}]*)\}", query)
        labels = {label for selector in selectors for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)}
        labels |= {label.strip() for by in re.findall(r"by \(([^)]*)\)", query) for label in by.split(",")}
        assert labels <= known, query


def test_the_dashboard_is_well_formed():
    panels = DASHBOARD["panels"]
    assert len({p["id"] for p in panels}) == len({p["title"] for p in panels}) == len(panels)
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and all(0 <= x < 24 for x, _ in cells), panel["title"]
        taken |= cells
        refs = [target["refId"] for target in panel["targets"]]
        assert refs and len(set(refs)) == len(refs)
        assert panel["description"] and panel["datasource"]["uid"] == "$datasource"
        variables = {v["name"] for v in DASHBOARD["templating"]["list"]}
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"]))
            assert {"model_name", "instance"} <= used <= variables | {"__rate_interval", "__range"}


@pytest.mark.parametrize("series, outcome", [(mixin.BOTH_SERIES, m.FAILED), (mixin.DECODE_SERIES, m.ORDINARY)])
def test_a_first_conflict_is_an_increase(series, outcome):
    """Prometheus sees none in a series that begins with 1, and a conflict is to be alerted on once."""
    assert (m.REQUESTS, outcome, "conflict") in series
