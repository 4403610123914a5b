"""The alerts of Prometheus and the dashboard of Grafana in deploy/."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from helpers.service_manager import DEPLOY

RULES = DEPLOY / "prometheus" / "rules.yaml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "splitarrow.json"


def rules() -> list[dict[str, Any]]:
    """Return the alerts."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    return json.loads(DASHBOARD.read_text())


def queries() -> Iterator[str]:
    """Yield the queries of the dashboard, with values in the place of its variables."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "1m")
            yield re.sub(r'"\$\w+"', '".*"', query)
