"""The picture of a report: throughput over batch size, one line for each backend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import MissingExtraError, UsageError
from .backends import BASELINE, REFERENCE
from .tables import size_text

if TYPE_CHECKING:
    from .report import Report

_KINDS = (".svg", ".png")
_INK = "#1f2933"
_FAINT = "#7b8794"

_LOOKS: dict[str, dict[str, Any]] = {
    # Colours of Okabe and Ito, told apart by the colour-blind; shapes tell them apart in grey.
    "splitarrow-tcp": {"color": "#0072B2", "marker": "o", "linewidth": 2.6, "zorder": 6},
    "splitarrow-tcp-async": {"color": "#56B4E9", "marker": "s", "linewidth": 2.0, "zorder": 5},
    "flight": {"color": "#D55E00", "marker": "^", "linewidth": 2.6, "zorder": 4},
    "inproc": {"color": "#009E73", "marker": "D", "linewidth": 1.6, "zorder": 3},
    "raw": {"color": "#7b8794", "marker": "v", "linewidth": 1.6, "linestyle": "--", "zorder": 2},
}
_OTHERS: tuple[dict[str, Any], ...] = (
    {"color": "#CC79A7", "marker": "P", "linewidth": 2.0, "zorder": 5},
    {"color": "#E69F00", "marker": "X", "linewidth": 2.0, "zorder": 5},
)
_SHADED = ("splitarrow-tcp", BASELINE)
"""The lines whose range is drawn; more than two would hide each other."""
_LABELS = {
    "flight": "Arrow Flight",
    "raw": "raw sockets",
    "inproc": "splitarrow, in process",
    "splitarrow-tcp": "splitarrow",
    "splitarrow-tcp-async": "splitarrow, async",
}


def check_plot(path: Path) -> None:
    """Check that a picture can be drawn, before the figures are there.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    UsageError
        If the suffix is neither ``.svg`` nor ``.png``, or the folder does not exist.
    """
    if path.suffix.lower() not in _KINDS:
        raise UsageError(f"{path}: a picture ends in {' or '.join(_KINDS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.absolute().parent}")
    try:
        import matplotlib  # noqa: F401  # pyright: ignore
    except ImportError:
        raise MissingExtraError(
            "a plot needs the package 'matplotlib': pip install 'splitarrow[bench]'"
        ) from None


def draw(report: Report, path: Path) -> None:
    """Draw a report; see `Report.plot`."""
    check_plot(path)
    import matplotlib as mpl  # pyright: ignore[reportMissingImports]
    from matplotlib.backends.backend_agg import (  # pyright: ignore[reportMissingImports]
        FigureCanvasAgg,
    )
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    style = {
        "font.family": "DejaVu Sans",
        "font.size": 11,
        "svg.hashsalt": "splitarrow",
        "axes.edgecolor": _FAINT,
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
    }
    with mpl.rc_context(cast(Any, style)):
        figure = Figure(figsize=(8.4, 4.8), facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        ends = _lines(report, axes)
        _scales(report, axes)
        figure.draw_without_rendering()
        _name_lines(axes, ends)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        try:
            figure.savefig(path, dpi=160, metadata=metadata)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _lines(report: Report, axes: Any) -> list[tuple[str, str, float]]:
    """Draw a line for each backend; return names, colours and where the lines end."""
    ends: list[tuple[str, str, float]] = []
    others = iter(_OTHERS * len(report.results))
    for name in report.backends():
        if name == REFERENCE:
            continue
        look = _LOOKS.get(name) or next(others)
        results = [result for result in report.of("sizes") if result.backend == name]
        results.sort(key=lambda result: result.batch_bytes)
        sizes = [result.batch_bytes for result in results]
        rates = [result.rate for result in results]
        middle = [rate.median / 1e9 for rate in rates]
        if name in _SHADED:
            axes.fill_between(
                sizes,
                [rate.least / 1e9 for rate in rates],
                [rate.most / 1e9 for rate in rates],
                color=look["color"],
                alpha=0.15,
                linewidth=0,
            )
        axes.plot(sizes, middle, markersize=6, markeredgecolor="white", **look)
        ends.append((_LABELS.get(name, name), look["color"], middle[-1]))
    return ends


def _scales(report: Report, axes: Any) -> None:
    from matplotlib.ticker import (  # pyright: ignore[reportMissingImports]
        FixedLocator,
        NullLocator,
    )

    sizes = sorted(report.batch_sizes())
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [size_text(size) for size in sizes])
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
        color=_INK,
    )
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=6)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _name_lines(axes: Any, ends: list[tuple[str, str, float]]) -> None:
    """Write each name beside the end of its line, apart from the others."""
    apart = 15.0  # points
    scale = axes.figure.dpi / 72
    heights = [axes.transData.transform((1, rate))[1] / scale for _, _, rate in ends]
    order = sorted(range(len(ends)), key=heights.__getitem__)
    placed = [heights[index] for index in order]
    # Move crowded neighbours apart, up and down alike, until each has its line.
    for _ in range(100):
        for lower in range(len(placed) - 1):
            short = apart - (placed[lower + 1] - placed[lower])
            if short > 0:
                placed[lower] -= short / 2
                placed[lower + 1] += short / 2
    right = axes.get_xlim()[1]
    for index, height in zip(order, placed, strict=True):
        label, color, rate = ends[index]
        axes.annotate(
            label,
            xy=(right, rate),
            xytext=(4, height - heights[index]),
            textcoords="offset points",
            va="center",
            color=color,
            fontweight="bold" if label == "splitarrow" else "normal",
            annotation_clip=False,
        )
