"""The plot of the benchmark of loaders: the rows per second of each loader, as bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from ..errors import UsageError
from .formatting import format_figure
from .loader_report import OURS, LoaderReport
from .plot import check_plot

_TEXT_COLOR = "#1f2933"
# The colors of Okabe and Ito, which color-blind readers can distinguish.
_OUR_COLORS = ("#0072B2", "#56B4E9")
_PEER_COLOR = "#b8c0c8"


def save_plot(report: LoaderReport, path: Path) -> None:
    """Draw the warm rates of a report, one panel for each number of workers, and save the plot.

    `path`: its suffix, ``.svg`` or ``.png``, selects the format. Raises `MissingExtraError` if
    matplotlib is not installed. Raises `UsageError` if the suffix is another one, the report has no
    warm round, or the file cannot be written.
    """
    check_plot(path)
    import matplotlib as mpl  # pyright: ignore[reportMissingImports]
    from matplotlib.backends.backend_agg import (  # pyright: ignore[reportMissingImports]
        FigureCanvasAgg,
    )
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    panels = [workers for workers in report.workers() if _list_rates(report, workers)]
    if not panels:
        raise UsageError(f"{path}: the report has no warm round to draw")
    style = {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "svg.hashsalt": "splitarrow",  # the same report gives the same file
        "text.color": _TEXT_COLOR,
        "ytick.color": _TEXT_COLOR,
    }
    with mpl.rc_context(cast(Any, style)):
        figure = Figure(figsize=(8.4, 3.4), facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        axes = cast(Any, figure.subplots(1, len(panels), squeeze=False))[0]
        for workers, each in zip(panels, axes, strict=True):
            _draw_panel(report, workers, each)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        try:
            figure.savefig(path, dpi=160, metadata=metadata)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _list_rates(report: LoaderReport, workers: int) -> dict[str, float]:
    """Return the median warm rates in million rows per second, by loader."""
    return {
        result.loader: rate.median / 1e6
        for result in report.results
        if result.workers == workers and (rate := result.rate("warm")) is not None
    }


def _draw_panel(report: LoaderReport, workers: int, axes: Any) -> None:
    rates = _list_rates(report, workers)
    ours: dict[str, str] = dict(zip(OURS, _OUR_COLORS, strict=True))
    names = sorted(rates, key=rates.__getitem__)
    bars = axes.barh(names, [rates[name] for name in names], height=0.7)
    for name, bar in zip(names, bars, strict=True):
        bar.set_color(ours.get(name, _PEER_COLOR))
    axes.bar_label(bars, [format_figure(rates[name]) for name in names], padding=4)
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        label.set_fontweight("bold" if name in ours else "normal")
    axes.margins(x=0.14)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    title = "no workers" if not workers else f"{workers} workers"
    axes.set_title(f"{title}: M rows/s, warm", loc="left", fontsize=10)
