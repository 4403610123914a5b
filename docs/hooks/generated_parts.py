"""A hook of mkdocs: settings, metrics and diagrams of states, from their declarations."""

from __future__ import annotations

import re
from functools import partial
from itertools import groupby
from typing import Any

from splitarrow.protocol.states import READER, SERVER, ReaderState, ServerState, draw_diagram
from splitarrow.server.config import Declaration, Reload, Settings, declarations
from splitarrow.server.metrics import DaemonMetrics, Metric, Metrics, Registry, RelayMetrics

_RELOAD = {Reload.RESTART: "", Reload.RELOAD: " *reload*", Reload.CHANGE: " *change*"}


def on_page_markdown(markdown: str, **_options: Any) -> str:
    """Put the generated parts in the place of their marks."""
    for mark, describe in _PARTS.items():
        if mark in markdown:
            markdown = markdown.replace(mark, describe())
    return markdown


def describe_settings() -> str:
    """Return a section with a table for each group of settings."""
    return "\n".join(
        f"## {group.value}\n\n"
        "setting | default | description\n"
        "--- | --- | ---\n" + "".join(map(_settings_row, members))
        for group, members in groupby(declarations(Settings), lambda one: one.setting.group)
    )


def _settings_row(declaration: Declaration) -> str:
    cells = (
        f"`{declaration.name}`{_value(declaration)}",
        declaration.default_text or "",
        _describe(declaration),
    )
    return " | ".join(cell.replace("|", r"\|") for cell in cells) + "\n"


def _describe(declaration: Declaration) -> str:
    needs = " or ".join(f"`{name}`" for name in declaration.setting.needs)
    text = re.sub(r", (in seconds|as in \w+)(?=[,.])", "", declaration.help)
    return text + (f" Needs {needs}." if needs else "") + _RELOAD[declaration.setting.reload]


def _value(declaration: Declaration) -> str:
    if declaration.is_flag:
        return " `FLAG`"
    values = declaration.choices or (declaration.metavar,)
    return " " + ", ".join(f"`{value}`" for value in values)


def describe_metrics() -> str:
    """Return sections with the metrics for the data, for the daemon, and for relays."""
    sections = (("Data", Metrics), ("Daemon", DaemonMetrics), ("Relay", RelayMetrics))
    return "\n".join(_section(title, registry) for title, registry in sections)


def _section(title: str, registry: type[Registry]) -> str:
    rows = [
        _describe_metric(metric) for metric in registry.declarations() if metric.export is not None
    ]
    return f"### {title}\n\n{''.join(rows)}"


def _describe_metric(metric: Metric) -> str:
    """Return an item. A suffix marks counters, a word histograms; all others are gauges."""
    name = metric.exported_name
    assert name is not None
    assert name.endswith("_total") == (metric.type.value == "counter")
    labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
    kind = "(histogram) " if metric.type.value == "histogram" else ""
    return f"- `{name}{labels}`: {kind}{metric.help}\n"


def _draw(table: Any, start: Any) -> str:
    return f"```mermaid\n{draw_diagram(table, start)}\n```"


_PARTS = {
    "<!-- settings -->": describe_settings,
    "<!-- metrics -->": describe_metrics,
    "<!-- server states -->": partial(_draw, SERVER, ServerState.PREFACE),
    "<!-- reader states -->": partial(_draw, READER, ReaderState.CONNECTING),
}
