"""The dashboard and the alert rules use only metrics and labels that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from tenure.lifecycle.statuses import Status
from tenure.observe.meter import OUTCOMES, RELEASED
from tenure.observe.metrics import METRICS, MetricType
from tools.generated import ROOT

FOLDER = ROOT / "deploy" / "grafana"
ADDED_BY_PROMETHEUS = {"job", "instance"}
"""Labels that every scraped series has besides its own."""
SUFFIXES = {MetricType.COUNTER: ("",), MetricType.GAUGE: ("",), MetricType.HISTOGRAM: ("_bucket", "_sum", "_count")}
LABELS = {
    f"{metric.name}{suffix}": {*metric.labels, *({"le"} if suffix == "_bucket" else ())}
    for metric in METRICS
    for suffix in SUFFIXES[metric.type]
}
"""The labels of every series that a scrape can have."""
WORDS = {
    *("sum", "max", "min", "by", "rate", "increase", "histogram_quantile", "absent", "or"),
    *("label_values",),
}
"""The words of the query language that are used here. A word that is not among them would have to be a metric."""


@dataclass(frozen=True)
class Use:
    """One metric in an expression, and the labels that it is asked for there."""

    metric: str
    labels: frozenset[str]
    values: tuple[tuple[str, str], ...]


class NotUnderstood(Exception):
    """An expression that this reader cannot vouch for."""


def uses(expression: str) -> list[Use]:
    """Every metric of an expression with its matchers, and with the labels that it is grouped by."""
    grouped = {name.strip() for group in re.findall(r"\bby\s*\(([^)]*)\)", expression) for name in group.split(",")}
    bare = re.sub(r"\bby\s*\([^)]*\)", " ", expression)
    found = []
    for name, _, matchers in re.findall(r"([a-zA-Z_:][\w:]*)\s*(\{([^}]*)\})?", _without_words(bare)):
        given = re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', matchers)
        found.append(Use(name, frozenset({label for label, _ in given} | grouped), tuple(given)))
    if not found:
        raise NotUnderstood(expression)
    return found


def _without_words(expression: str) -> str:
    """The expression without durations, strings outside of matchers, numbers, functions and operators."""
    plain = re.sub(r"\[[^\]]*\]", " ", expression)
    for word in WORDS:
        plain = re.sub(rf"\b{word}\b(?!\s*\{{)", " ", plain)
    return plain


def variables(dashboard: Any) -> Iterator[tuple[str, str]]:
    """What the dashboard's variables ask for: a metric and one of its labels."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            [(metric, label)] = re.findall(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            yield metric, label


def dashboard() -> Any:
    return json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))


def rules() -> list[dict[str, Any]]:
    loaded = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in loaded["groups"] for rule in group["rules"]]


PANELS = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
EXPRESSIONS = [
    *(target["expr"] for panel in PANELS for target in panel["targets"]),
    *(rule["expr"] for rule in rules()),
]


def problems(expression: str) -> list[str]:
    """What is wrong with an expression."""
    wrong = []
    for use in uses(expression):
        if use.metric not in LABELS:
            wrong.append(f"there is no metric {use.metric}")
            continue
        wrong += [
            f"{use.metric} has no label {label}"
            for label in sorted(use.labels - LABELS[use.metric] - ADDED_BY_PROMETHEUS)
        ]
    return wrong


@pytest.mark.requirement("SM-15")
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_uses_only_metrics_and_labels_that_there_are(expression: str) -> None:
    assert problems(expression) == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("sum(rate(tenure_claim_total[5m]))", "there is no metric tenure_claim_total"),
        ("sum(tenure_run_seconds)", "there is no metric tenure_run_seconds"),
        ('tenure_claims_total{queue="default"}', "tenure_claims_total has no label queue"),
        ("sum by (kind, le) (rate(tenure_claims_total[5m]))", "tenure_claims_total has no label le"),
        ("max by (queue) (tenure_jobs_due) / sum by (status) (tenure_jobs)", "tenure_jobs_due has no label status"),
        ("avg_over_time(tenure_jobs_due[5m])", "there is no metric avg_over_time"),
    ],
)
def test_the_reader_of_expressions_notices_what_is_not_there(expression: str, problem: str) -> None:
    assert problem in problems(expression)


def test_the_reader_of_expressions_does_not_pass_over_what_it_cannot_read() -> None:
    with pytest.raises(NotUnderstood):
        uses("1 + 1")


def test_values_that_are_asked_for_are_values_that_there_can_be() -> None:
    outcomes = {RELEASED.get(word, word) for word in (*OUTCOMES, "halted", "waiting")}
    possible = {"outcome": outcomes, "status": {str(status) for status in Status}}
    for expression in EXPRESSIONS:
        for use in uses(expression):
            for label, value in use.values:
                if label in possible:
                    assert set(value.split("|")) <= possible[label], expression


def test_the_variables_of_the_dashboard_can_be_filled() -> None:
    asked = list(variables(dashboard()))
    assert len(asked) == 3
    for metric, label in asked:
        assert label in LABELS[metric] | ADDED_BY_PROMETHEUS


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {use.metric for panel in PANELS for target in panel["targets"] for use in uses(target["expr"])}
    names = {name.removesuffix("_bucket") for name in shown}
    assert names == {metric.name for metric in METRICS}


def test_panels_do_not_overlap_and_have_unique_ids() -> None:
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + right, place["y"] + down) for right in range(place["w"]) for down in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_alert_has_its_meaning_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert all(rule["annotations"][part].endswith((".", "`.")) for part in ("summary", "description"))
        for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
            assert re.search(rf"by \([^)]*\b{label}\b", rule["expr"]), f"{rule['alert']} does not keep {label}"
