"""Prometheus' rules and Grafana's dashboard: they use the metrics that daemons have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from helpers.monitoring import DASHBOARD, RULES, dashboard, queries, rules
from helpers.service_manager import DEPLOY, PATIENCE
from splitarrow.server.metrics import DaemonMetrics, Metrics, MetricType, RelayMetrics

yaml: Any = pytest.importorskip("yaml")

_SUFFIXES = ("_bucket", "_sum", "_count")


def exported() -> dict[str, set[str]]:
    """Return the labels of each series that a daemon exports, by its name."""
    series: dict[str, set[str]] = {}
    for metric in [
        *Metrics.declarations(),
        *DaemonMetrics.declarations(),
        *RelayMetrics.declarations(),
    ]:
        name = metric.exported_name
        if name is None:
            continue
        names = [name + suffix for suffix in _SUFFIXES] if is_histogram(metric) else [name]
        series |= {each: {*metric.labels, "instance", "job", "le"} for each in names}
    return series


def is_histogram(metric: Any) -> bool:
    return metric.type is MetricType.HISTOGRAM


def promtool(*arguments: object) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("no promtool: Debian has it in the package prometheus")
    command = [tool, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "text",
    [RULES.read_text(), (RULES.parent / "tests.yaml").read_text(), DASHBOARD.read_text()],
    ids=["rules", "tests of the rules", "dashboard"],
)
def test_every_metric_exists(text: str) -> None:
    used = set(re.findall(r"\bsplitarrow_\w+", text))
    assert used
    assert used <= exported().keys()


@pytest.mark.parametrize("source", ["rules", "dashboard"])
def test_selectors_use_labels_that_the_metric_has(source: str) -> None:
    expressions = [rule["expr"] for rule in rules()] if source == "rules" else list(queries())
    selectors = re.findall(r"(splitarrow_\w+)\{([^}]*)\}", " ".join(expressions))
    assert selectors
    for name, selector in selectors:
        assert set(re.findall(r"(\w+) ?=", selector)) <= exported()[name], (name, selector)


def test_alerts_have_a_severity_and_texts() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description"}


def test_every_alert_has_a_test() -> None:
    tests = (RULES.parent / "tests.yaml").read_text()
    assert [rule["alert"] for rule in rules() if rule["alert"] not in tests] == []


def test_panels_have_units_and_fit_the_grid() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(places)) == len(places), "two panels overlap"
    assert max(x for x, _ in places) < 24
    for panel in panels:
        if panel["type"] != "row":
            assert panel["description"].endswith(".")
            assert panel["fieldConfig"]["defaults"]["unit"]


def test_the_provisioning_of_grafana_fits_the_compose_file() -> None:
    compose = yaml.safe_load((DEPLOY / "docker" / "quickstart.yaml").read_text())
    mounts = dict(
        mount.split(":")[:2]
        for service in ("grafana", "prometheus")
        for mount in compose["services"][service]["volumes"]
    )
    for source in mounts:
        if source.startswith("."):
            assert (DEPLOY / "docker" / source).resolve().exists(), source
    provisioning = DEPLOY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "splitarrow.yaml").read_text())[
        "providers"
    ]
    assert mounts["../grafana/dashboards"] == provider["options"]["path"]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in compose["services"]
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    (job,) = scraped["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    name, _, port = target.partition(":")
    assert compose["services"][name]["environment"]["SPLITARROW_HTTP"].endswith(f":{port}")


@pytest.mark.slow
def test_promtool_accepts_the_rules_and_their_tests_pass() -> None:
    promtool("check", "rules", RULES)
    promtool("check", "config", RULES.parent / "prometheus.yaml")
    promtool("test", "rules", RULES.parent / "tests.yaml")


@pytest.mark.slow
def test_promtool_parses_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    recorded = [
        {"record": f"query:{number}", "expr": query} for number, query in enumerate(queries())
    ]
    assert len(recorded) > 20
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    promtool("check", "rules", path)


@pytest.mark.slow
def test_grafana_knows_every_field_of_the_dashboard() -> None:
    """Its schema drops what it does not know."""
    model = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    known = json.loads(encoder.JSONEncoder().encode(model.Dashboard.from_json(dashboard())))
    assert find_differences(dashboard(), known) == []


def find_differences(written: Any, known: Any, place: str = "") -> list[str]:
    """Return the places where the first value has what the second one does not."""
    if isinstance(written, dict) and isinstance(known, dict):
        missing = [f"{place}/{key}" for key in written if key not in known]
        return missing + [
            difference
            for key in written.keys() & known.keys()
            for difference in find_differences(written[key], known[key], f"{place}/{key}")
        ]
    if isinstance(written, list) and isinstance(known, list) and len(written) == len(known):
        return [
            difference
            for index, pair in enumerate(zip(written, known, strict=True))
            for difference in find_differences(*pair, f"{place}/{index}")
        ]
    return [] if written == known else [place]
