"""The pages of the documentation that list all settings and all metrics.

``python tests/helpers/server_pages.py settings > docs/settings.md`` writes the one, and
``metrics > docs/metrics.md`` the other.
"""

from __future__ import annotations

import sys
from itertools import groupby

from splitarrow.server.config import Declaration, Reload, Settings, declarations
from splitarrow.server.metrics import DaemonMetrics, Metric, Metrics, Registry

_SETTINGS_INTRODUCTION = """\
# Settings

These are the settings of `splitarrow serve`. A setting's name is a key of the TOML file that
`--config` names, and a keyword argument of `splitarrow.serve`. The option is the same name with
hyphens: `--batch-rows` for `batch_rows`. The environment variable is the name in capitals with a
prefix: `SPLITARROW_BATCH_ROWS`.

An option wins over a variable, and a variable wins over the file. Only `datasets` is merged: the
server serves those of all three. In a variable, `datasets` is a JSON object, and `listen`,
`http_hosts` and `shm_users` are JSON arrays.

A size is a number of bytes or has a unit, as in `64KiB`, `100MB` or `4GiB`.

The last column shows when a running daemon applies a change: after a restart only, on a reload
(SIGHUP, or `splitarrow reload`), or on a reload and when the named file changes.

The server refuses unknown settings, unknown variables that begin with `SPLITARROW_`, and settings
that have no effect because another one is missing.
"""
_RELOAD = {
    Reload.RESTART: "restart",
    Reload.RELOAD: "reload",
    Reload.CHANGE: "reload, file change",
}


def settings_page() -> str:
    """Return the page in Markdown: one table for each group of settings."""
    sections = [_SETTINGS_INTRODUCTION]
    for group, members in groupby(declarations(Settings), lambda one: one.setting.group):
        sections.append(
            f"## {group.value}\n\n"
            "| setting | value | default | description | applied on |\n"
            "| --- | --- | --- | --- | --- |\n" + "".join(map(_settings_row, members))
        )
    return "\n".join(sections)


def _settings_row(declaration: Declaration) -> str:
    cells = (
        f"`{declaration.name}`",
        _value(declaration),
        "false" if declaration.is_flag else declaration.default_text or "",
        _describe(declaration),
        _RELOAD[declaration.setting.reload],
    )
    return " | ".join(["", *(cell.replace("|", r"\|") for cell in cells), ""]).strip() + "\n"


def _describe(declaration: Declaration) -> str:
    needs = " or ".join(f"`{name}`" for name in declaration.setting.needs)
    return f"{declaration.help} Needs {needs}." if needs else declaration.help


def _value(declaration: Declaration) -> str:
    if declaration.is_flag:
        return "`true` or `false`"
    return ", ".join(f"`{value}`" for value in declaration.choices or (declaration.metavar,))


_METRICS_INTRODUCTION = """\
# Metrics

A daemon with the setting `http` serves these metrics at `/metrics`: see
[Operations](operations.md#metrics-and-health). They are in the text format of Prometheus, or in
OpenMetrics if the scraper requests it. With `workers`, all values are those of all processes
together, except where a label names the process.

Names begin with `splitarrow_`, and those of counters end with `_total`. A histogram `NAME` has the
series `NAME_bucket`, `NAME_sum` and `NAME_count`.

- **`dataset`** is a dataset's name. The first 100 datasets that are read have series of their own;
  the others share the name `other`. So do the datasets that the scraper's token may not read.
- **`transport`** is the scheme of the reader's URI, such as `tcp`, `tcp+tls`, `shm` or `ucx`, and
  `flight` for DoGet.

No metric contains a ticket, a token, a path, an address of a reader or a value of a row.
"""
_COST = """\
## What the metrics cost

The path of the data counts rows, and the time for which it waits for readers. All other figures
are read where they are, at a scrape and at the end of a stream.

`python -m splitarrow.benchmarks.studies.counting` measures what that adds. For each group of
messages that a server sends, a coin decides whether it counts. The table compares both halves: the
processor time of the thread that sends, beside that of server and client together. One quiet run
on two cores, of 38 s for each row, with a client that counts rows, and 95 % intervals:

| stream | a group of messages | counting adds | share |
| --- | --- | --- | --- |
| TCP, batches of 4 KiB | 1387 µs | 10.8 ± 2.9 µs | 0.78 ± 0.21 % |
| TCP, batches of 1 MiB | 766 µs | 2.0 ± 3.8 µs | 0.27 ± 0.50 % |
| shared memory, batches of 4 KiB | 2032 µs | 1.0 ± 12.8 µs | 0.05 ± 0.63 % |
| shared memory, batches of 1 MiB | 146 µs | 1.0 ± 0.3 µs | 0.72 ± 0.17 % |

A group has about 118 batches of 4 KiB, or one of 1 MiB. A stream adds 6 µs when it begins and
ends. Over DoGet, a message adds 0.4 µs, measured apart from the stream: 0.7 % of the 53 µs for
which it takes the processor of the server with batches of 4 KiB, without those of the client. The
listener and a scrape are [beside the path of the data](operations.md#metrics-and-health).
"""


def metrics_page() -> str:
    """Return the page in Markdown: one table for the data, one for the daemon, and the cost."""
    return "\n".join(
        (
            _METRICS_INTRODUCTION,
            _section("Data", Metrics),
            _section("Daemon", DaemonMetrics),
            _COST,
        )
    )


def _section(title: str, registry: type[Registry]) -> str:
    rows = [_metrics_row(metric) for metric in registry.declarations() if metric.export is not None]
    heading = "| metric | type | labels | description |\n| --- | --- | --- | --- |\n"
    return f"## {title}\n\n{heading}{''.join(rows)}"


def _metrics_row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    cells = (f"`{metric.exported_name}`", metric.type.value, labels, metric.help)
    return f"| {' | '.join(cells)} |\n".replace("|  |", "| |")


if __name__ == "__main__":
    pages = {"settings": settings_page, "metrics": metrics_page}
    print(pages[sys.argv[1]](), end="")
