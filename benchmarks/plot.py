"""The plot of a report: throughput over batch size, with one line per backend."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import MissingExtraError, UsageError, install_hint
from .backends import BASELINE, REFERENCE
from .report import Report
from .statistics import format_size

_SUFFIXES = (".svg", ".png")
TEXT_COLOR = "#1f2933"
_AXIS_COLOR = "#7b8794"
_GRID_COLOR = "#e4e7eb"

# The colors of Okabe and Ito, which color-blind readers can distinguish. The markers distinguish
# the lines in grayscale.
_LINE_STYLES: dict[str, dict[str, Any]] = {
    "splitarrow-tcp": {"color": "#0072B2", "marker": "o", "linewidth": 2.6, "zorder": 6},
    "splitarrow-tcp-async": {"color": "#56B4E9", "marker": "s", "linewidth": 2.0, "zorder": 5},
    "flight": {"color": "#D55E00", "marker": "^", "linewidth": 2.6, "zorder": 4},
    "inproc": {"color": "#009E73", "marker": "D", "linewidth": 1.6, "zorder": 3},
    "raw": {"color": "#7b8794", "marker": "v", "linewidth": 1.6, "linestyle": "--", "zorder": 2},
}
_OTHER_LINE_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#CC79A7", "marker": "P", "linewidth": 2.0, "zorder": 5},
    {"color": "#E69F00", "marker": "X", "linewidth": 2.0, "zorder": 5},
)
_BACKENDS_WITH_RANGE = ("splitarrow-tcp", BASELINE)
"""The backends whose range is shaded. More than two shaded areas would hide each other."""
_LABELS = {
    "flight": "Arrow Flight",
    "raw": "raw sockets",
    "inproc": "splitarrow, in process",
    "splitarrow-tcp": "splitarrow",
    "splitarrow-tcp-async": "splitarrow, async",
}
_EMPHASIZED_LABEL = "splitarrow"
_LABEL_DISTANCE = 15.0
"""The smallest vertical distance between two labels, in points."""


class _Line(NamedTuple):
    label: str
    color: str
    last_rate: float
    """The rate at the right end of the line, in GB/s."""


def check_plot(path: Path) -> None:
    """Check that `save_plot` can draw, before a run takes minutes.

    Raises `MissingExtraError` if matplotlib is not installed. Raises `UsageError` if the suffix is
    neither ``.svg`` nor ``.png``, or the folder does not exist.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"{path}: the suffix of a plot must be {' or '.join(_SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: the folder {path.absolute().parent} does not exist")
    try:
        import matplotlib  # noqa: F401  # pyright: ignore
    except ImportError:
        raise MissingExtraError(
            f"a plot needs the package 'matplotlib': {install_hint('bench')}"
        ) from None


@contextmanager
def open_figure(
    path: Path, inches: tuple[float, float], style: Mapping[str, Any] | None = None
) -> Generator[Any]:
    """Yield an empty figure of matplotlib, and save it when the context ends.

    `style` changes matplotlib's settings. Raises as `check_plot` does, and if the file cannot be
    written.
    """
    check_plot(path)
    import matplotlib as mpl  # pyright: ignore[reportMissingImports]
    from matplotlib.backends.backend_agg import (  # pyright: ignore[reportMissingImports]
        FigureCanvasAgg,
    )
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    settings: Any = {
        "font.family": "DejaVu Sans",
        "font.size": 11,
        "svg.hashsalt": "splitarrow",  # the same report gives the same file
        "text.color": TEXT_COLOR,
        **(style or {}),
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=inches, facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        try:
            figure.savefig(path, dpi=160, metadata=metadata)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None


def save_plot(report: Report, path: Path) -> None:
    """Draw the rates of a report over the batch sizes, and save the plot."""
    colors = {
        "axes.edgecolor": _AXIS_COLOR,
        "axes.labelcolor": TEXT_COLOR,
        "xtick.color": TEXT_COLOR,
        "ytick.color": TEXT_COLOR,
    }
    with open_figure(path, (8.4, 4.8), colors) as figure:
        axes = figure.add_subplot()
        lines = _draw_lines(report, axes)
        _format_axes(report, axes)
        figure.draw_without_rendering()  # fixes the positions that the labels depend on
        _draw_labels(axes, lines)


def _draw_lines(report: Report, axes: Any) -> list[_Line]:
    lines: list[_Line] = []
    consume = report.consumers()[0]
    other_styles = iter(_OTHER_LINE_STYLES * len(report.results))
    for name in report.backends():
        if name == REFERENCE:
            continue
        style = _LINE_STYLES.get(name) or next(other_styles)
        found = (report.find(name, size, consume) for size in report.batch_sizes())
        results = [result for result in found if result is not None]
        results.sort(key=lambda result: result.batch_bytes)
        sizes = [result.batch_bytes for result in results]
        medians = [result.rate.median / 1e9 for result in results]
        if name in _BACKENDS_WITH_RANGE:
            axes.fill_between(
                sizes,
                [result.rate.minimum / 1e9 for result in results],
                [result.rate.maximum / 1e9 for result in results],
                color=style["color"],
                alpha=0.15,
                linewidth=0,
            )
        axes.plot(sizes, medians, markersize=6, markeredgecolor="white", **style)
        lines.append(_Line(_LABELS.get(name, name), style["color"], medians[-1]))
    return lines


def _format_axes(report: Report, axes: Any) -> None:
    from matplotlib.ticker import (  # pyright: ignore[reportMissingImports]
        FixedLocator,
        NullLocator,
    )

    sizes = sorted(report.batch_sizes())
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [format_size(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    steps = [step * 10.0**power for power in range(-4, 4) for step in (1, 2, 5)]
    ticks = [tick for tick in steps if low <= tick <= high]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_ylim(low, high)
    axes.set_xlabel("size of a record batch")
    axes.set_title(
        "GB/s from one server to one client over loopback: medians, and ranges of all rounds",
        loc="left",
        fontsize=11,
        color=TEXT_COLOR,
    )
    axes.grid(axis="y", color=_GRID_COLOR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=6)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _draw_labels(axes: Any, lines: list[_Line]) -> None:
    """Write each label beside the right end of its line."""
    points_per_pixel = 72 / axes.figure.dpi
    ends = [axes.transData.transform((1, line.last_rate))[1] * points_per_pixel for line in lines]
    right = axes.get_xlim()[1]
    for line, end, height in zip(lines, ends, _separate(ends), strict=True):
        axes.annotate(
            line.label,
            xy=(right, line.last_rate),
            xytext=(4, height - end),
            textcoords="offset points",
            va="center",
            color=line.color,
            fontweight="bold" if line.label == _EMPHASIZED_LABEL else "normal",
            annotation_clip=False,
        )


def _separate(heights: list[float]) -> list[float]:
    """Return heights that are at least `_LABEL_DISTANCE` apart, in the same order."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    moved = [heights[index] for index in order]
    for _ in range(100):
        for lower in range(len(moved) - 1):
            overlap = _LABEL_DISTANCE - (moved[lower + 1] - moved[lower])
            if overlap > 0:
                moved[lower] -= overlap / 2
                moved[lower + 1] += overlap / 2
    separated = [0.0] * len(heights)
    for index, height in zip(order, moved, strict=True):
        separated[index] = height
    return separated
