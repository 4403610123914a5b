"""The pages of the documentation that list all settings and all metrics.

``python tests/helpers/server_pages.py`` writes docs/settings.md, and the tables of
docs/monitoring.md.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

from splitarrow.server.config import Declaration, Reload, Settings, declarations
from splitarrow.server.metrics import DaemonMetrics, Metric, Metrics, Registry

DOCS = Path(__file__).resolve().parents[2] / "docs"

_SETTINGS_INTRODUCTION = """\
# Settings

These are the settings of `splitarrow serve`. A setting's name is a key of the TOML file that
`--config` names, and a keyword argument of `splitarrow.serve`. Its option has hyphens, and its
environment variable capitals and a prefix: `--batch-rows` and `SPLITARROW_BATCH_ROWS` for
`batch_rows`.

An option wins over a variable, and a variable over the file; only the `datasets` of all three are
merged. In a variable, `datasets` is a JSON object, and `listen`, `http_hosts` and `shm_users` are
JSON arrays.

A `SIZE` is a number of bytes or has a unit: `64KiB`, `100MB`, `4GiB`. `SECONDS` may have decimals.
A `FLAG` is `true` or `false`, and `false` by default.

A running daemon applies the settings marked *reload* on SIGHUP or `splitarrow reload`, those marked
*change* also when the named file changes, and all others after a restart.

The server refuses unknown settings, unknown variables that begin with `SPLITARROW_`, and settings
that have no effect because another one is missing.
"""
_RELOAD = {Reload.RESTART: "", Reload.RELOAD: " *reload*", Reload.CHANGE: " *change*"}


def settings_page() -> str:
    """Return the page in Markdown: one table for each group of settings."""
    sections = [_SETTINGS_INTRODUCTION]
    for group, members in groupby(declarations(Settings), lambda one: one.setting.group):
        sections.append(
            f"## {group.value}\n\n"
            "setting | default | description\n"
            "--- | --- | ---\n" + "".join(map(_settings_row, members))
        )
    return "\n".join(sections)


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


_BEGIN, _END = "<!-- metrics: begin -->\n", "<!-- metrics: end -->\n"


def monitoring_page(page: str) -> str:
    """Return the page with its tables of metrics, one for the data and one for the daemon."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert begin, f"docs/monitoring.md has lost the line {_BEGIN!r}"
    assert end, f"docs/monitoring.md has lost the line {_END!r}"
    tables = _section("Data", Metrics) + "\n" + _section("Daemon", DaemonMetrics)
    return f"{before}{begin}\n{tables}\n{end}{after}"


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


if __name__ == "__main__":
    (DOCS / "settings.md").write_text(settings_page())
    (DOCS / "monitoring.md").write_text(monitoring_page((DOCS / "monitoring.md").read_text()))
