"""What a change did: the rates of a run beside those of an earlier one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .formatting import format_interval, format_median, format_size
from .report import Report
from .results import Result
from .statistics import Interval, ratio_interval

if TYPE_CHECKING:
    from rich.console import Group

_LEAST_CHANGE = 0.02
"""A smaller change does not count, whatever its interval."""


@dataclass(frozen=True, slots=True)
class Change:
    """One case that both runs measured."""

    earlier: Result
    """The result of the earlier run."""
    later: Result
    """The result of the later run."""

    @property
    def ratio(self) -> float:
        """The later median rate divided by the earlier one."""
        return self.later.rate.median / self.earlier.rate.median

    @property
    def interval(self) -> Interval:
        """The 95 % confidence interval of the ratio."""
        earlier, later = (
            [sample.seconds for sample in result.samples] for result in (self.earlier, self.later)
        )
        return ratio_interval(earlier, later)

    @property
    def verdict(self) -> str:
        """``faster`` or ``slower`` if the interval shows it, otherwise empty."""
        low, high = self.interval
        if low > 1 + _LEAST_CHANGE:
            return "faster"
        return "slower" if high < 1 - _LEAST_CHANGE else ""


def find_changes(earlier: Report, later: Report) -> list[Change]:
    """Return the cases that both runs measured, in the order of the later run."""
    known = {(each.section, each.backend, *each.case): each for each in earlier.results}
    pairs = ((known.get((each.section, each.backend, *each.case)), each) for each in later.results)
    return [Change(before, after) for before, after in pairs if before is not None]


def comparison_table(earlier: Report, later: Report) -> Group:
    """Return the changes as a renderable of rich. It fits 80 columns."""
    from rich import box
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("batches of", no_wrap=True)
    for heading in ("before", "now", "ratio", "95 % interval", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    heading = ""
    for change in find_changes(earlier, later):
        result, verdict = change.later, change.verdict
        clients = f" × {result.clients}" if result.clients > 1 else ""
        before, heading = heading, f"{format_size(result.batch_bytes)}, {result.consume}"
        if heading != before:
            table.add_row(Text(heading, style="bold"))
        table.add_row(
            f"  {result.backend}{clients}",
            format_median(change.earlier.rate, 1e-9),
            format_median(result.rate, 1e-9),
            f"{change.ratio:.2f}",
            format_interval(change.interval),
            Text(verdict, style={"faster": "green", "slower": "red"}.get(verdict, "")),
        )
    parts: list[RenderableType] = [
        Text(f"GB/s, compared with the run of {earlier.created}", style="bold"),
        table,
    ]
    if (earlier.machine, earlier.options) != (later.machine, later.options):
        parts.append(Text("The runs differ in their machine or their options.", style="yellow"))
    return Group(*parts)
