"""The status page: rendered on the server, without scripts.

`History` keeps the rates of the last minutes, which the page plots.
"""

from __future__ import annotations

import platform
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ...formats.text import format_bytes, format_size
from ...protocol.uri import DataUri
from ..auth.principal import Principal
from ..config import Declaration, Settings, declarations
from ..metrics import OTHER, Sample, merge_samples
from ..report import ProcessReport, StreamReport, package_version
from .preview import Preview, show_value
from .service import Service

WIDTH, HEIGHT = 120.0, 28.0
"""The size of the coordinate system in which a path is drawn."""
_TOP = 2.0


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A line plot of values."""

    line: str
    """The path of the line; empty if there are too few values."""
    area: str
    """The path of the area below the line."""
    peak: float
    """The largest value."""


def draw_sparkline(values: Sequence[float], points: int) -> Sparkline:
    """Return a sparkline of values that are not negative, the last one at the right edge.

    Examples
    --------
    >>> draw_sparkline([0, 5, 10], 3).line
    'M0,28 L60,15 L120,2'
    """
    peak = max(values, default=0.0)
    if len(values) < 2:
        return Sparkline("", "", peak)
    step = WIDTH / (points - 1)
    left = WIDTH - step * (len(values) - 1)
    scale = (HEIGHT - _TOP) / peak if peak else 0.0
    places = [
        f"{left + step * index:.4g},{HEIGHT - value * scale:.4g}"
        for index, value in enumerate(values)
    ]
    line = "M" + " L".join(places)
    return Sparkline(line, f"{line} L{WIDTH:g},{HEIGHT:g} L{left:.4g},{HEIGHT:g} Z", peak)


POINTS = 60
"""The number of rates that are kept for each dataset."""
_BYTES = ("sent_bytes", "mapped_bytes")


class History:
    """The bytes per second of each dataset, one rate for each call of `record`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rates: dict[str, deque[float]] = {}
        self._before: dict[str, float] | None = None
        self._time = 0.0

    def record(self, collect: Callable[[], list[ProcessReport]]) -> None:
        """Record the rates since the last call."""
        totals, now = _sum_bytes(collect()), self._clock()
        with self._lock:
            before, seconds = self._before, now - self._time
            self._before, self._time = totals, now
            if before is None or seconds <= 0:
                return
            for label in totals.keys() | self._rates.keys():
                rates = self._rates.setdefault(label, deque(maxlen=POINTS))
                sent = totals.get(label, 0.0) - before.get(label, 0.0)
                rates.append(max(0.0, sent) / seconds)

    def rates(self, label: str) -> list[float]:
        """Return the rates of a dataset in bytes per second, the oldest first."""
        with self._lock:
            return list(self._rates.get(label, ()))

    def total(self, labels: Container[str] | None = None) -> list[float]:
        """Return the rates of some or all datasets together, the oldest first."""
        with self._lock:
            rates = [
                [*each] for label, each in self._rates.items() if labels is None or label in labels
            ]
        length = max(map(len, rates), default=0)
        padded = [[0.0] * (length - len(each)) + each for each in rates]
        return [sum(values) for values in zip(*padded, strict=True)]


def _sum_bytes(reports: list[ProcessReport]) -> dict[str, float]:
    totals = Counter[str]()
    for metric, labels, value in merge_samples(report.samples for report in reports):
        if metric.name in _BYTES and isinstance(value, (int, float)):
            totals[labels[0]] += value  # pyright: ignore[reportArgumentType]
    return dict(totals)


REFRESH_SECONDS = 10
"""The time after which a browser loads the page again, in seconds."""
_TEMPLATES = Path(__file__).with_name("templates")
_MAX_STREAMS = 200
"""The number of streams that the page shows; /v1/streams has all."""
_MAX_DATASETS = 200
_NOTICES = {
    "cancelled": "The stream was cancelled.",
    "ended": "That stream is not running any more.",
}
_ADDRESSES = ("listen", "control", "http")
"""The settings that are URIs without secrets. Other text may be a path, or hold a password."""


class Page:
    """Renders the pages."""

    def __init__(self) -> None:
        self.style = (_TEMPLATES / "style.css").read_text()
        """The style sheet."""
        self.icon = (_TEMPLATES / "icon.svg").read_text()
        """The icon."""
        environment = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters.update(
            number=format_number,
            size=_format_size,
            duration=format_duration,
            ago=_format_ago,
            cell=show_value,
            segment=_quote_segment,
        )
        self._status = environment.get_template("status.html")
        self._cancel = environment.get_template("cancel.html")
        self._dataset = environment.get_template("dataset.html")

    def render_status(
        self,
        service: Service,
        principal: Principal,
        history: History,
        refreshes: bool,
        notice: str,
    ) -> str:
        """Return the status page, as a principal may see it, with one of `_NOTICES`."""
        streams, refusals = service.list_streams(principal)
        problem = service.find_problem()
        datasets = list(_list_datasets(service, principal, history))
        sees_server = principal.is_operator
        labels = [service.context.streams.label_of(facts["name"]) for facts in datasets]
        shown = None if sees_server else {*labels} - {OTHER}
        return self._status.render(
            state=_describe_state(service, problem),
            problem=problem,
            is_relay=(relay := service.context.relay) is not None,
            is_offline=relay is not None and relay.is_offline,
            uptime=time.time() - service.started,
            figures=_Figures(service.samples()),
            total=draw_sparkline(rates := history.total(shown), POINTS),
            rate=rates[-1] if rates else 0.0,
            datasets=datasets[:_MAX_DATASETS],
            hidden_datasets=max(0, len(datasets) - _MAX_DATASETS),
            streams=sorted(streams, key=lambda stream: -stream.seconds)[:_MAX_STREAMS],
            stream_count=len(streams),
            hidden_streams=max(0, len(streams) - _MAX_STREAMS),
            refusals=refusals,
            now=time.time(),
            principal=principal,
            sees_server=sees_server,
            settings=list(_list_settings(service.context.settings)),
            versions=_list_versions() if sees_server else _list_versions()[:1],
            refresh_seconds=REFRESH_SECONDS if refreshes else None,
            notice=_NOTICES.get(notice),
        )

    def render_cancel(self, stream: StreamReport, form_token: str) -> str:
        """Return the page that asks whether to cancel a stream, by a form with a token."""
        return self._cancel.render(stream=stream, form_token=form_token)

    def render_dataset(
        self,
        about: Mapping[str, Any],
        preview: Preview | None,
        reason: str,
        address: str,
        *,
        needs_token: bool,
    ) -> str:
        """Return the page of a dataset with a description.

        `reason` says why there is no preview. `address` is the scheme and the host by which the
        client addresses this server.
        """
        return self._dataset.render(
            about=about,
            preview=preview,
            reason=reason,
            examples=list(_list_examples(about, address)),
            needs_token=needs_token,
        )


def _list_examples(about: Mapping[str, Any], address: str) -> Iterator[tuple[str, str]]:
    """Yield programs that read a dataset, and what they are written in."""
    name = quote(about["name"], safe="")
    data = f"{address}{about['data']}"
    yield (
        "Python",
        f'import splitarrow\n\nwith splitarrow.open("{address}/{name}") as stream:\n'
        "    table = stream.read_all()",
    )
    yield "curl", f"curl --fail -o '{name}.arrows' '{data}'"
    yield "DuckDB", f"SELECT * FROM read_csv('{data}?format=csv');"
    yield "R", f'arrow::read_ipc_stream(url("{data}", "rb"))'
    yield (
        "JavaScript",
        'import { tableFromIPC } from "apache-arrow";\n\n'
        # If `tableFromIPC` gets the response, it ignores errors of the connection.
        f'const response = await fetch("{data}");\n'
        "if (!response.ok) throw new Error(await response.text());\n"
        "const table = tableFromIPC(await response.arrayBuffer());",
    )


class _Figures:
    """The metrics without labels of datasets, by name; a sum where they have labels."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    def __call__(self, name: str, *labels: str) -> float:
        """Return the sum of the values of a metric whose labels begin with `labels`."""
        return sum(
            float(sample.value)
            for sample in self._samples
            if sample.metric.name == name
            and sample.labels[: len(labels)] == labels
            and isinstance(sample.value, (int, float))
        )

    def ratio(self, cache: str) -> float | None:
        """Return the share of uses of a cache that found the data; None if there were none."""
        hits, misses = self("cache_hits", cache), self("cache_misses", cache)
        return hits / (hits + misses) if hits + misses else None


def _describe_state(service: Service, problem: str | None) -> str:
    if service.reporter.draining:
        return "draining"
    return "ready" if problem is None else "not ready"


def _list_datasets(
    service: Service, principal: Principal, history: History
) -> Iterator[dict[str, Any]]:
    for facts in service.list_datasets(principal):
        label = service.context.streams.label_of(facts["name"])
        rates = history.rates(label) if label == facts["name"] else []
        yield {
            **facts,
            "streams": facts["streams"] or 0,
            "rate": rates[-1] if rates else 0.0,
            "sparkline": draw_sparkline(rates, POINTS),
        }


def _list_settings(settings: Settings) -> Iterator[tuple[str, list[tuple[str, str, bool]]]]:
    """Yield the groups of settings: the name, the value as text, and whether it was changed."""
    groups: dict[str, list[tuple[str, str, bool]]] = {}
    for declaration in declarations(Settings):
        value = getattr(settings, declaration.name)
        changed = value != declaration.default
        text = describe_setting(declaration, value)
        groups.setdefault(declaration.setting.group.value, []).append(
            (declaration.name, text, changed)
        )
    yield from groups.items()


def describe_setting(declaration: Declaration, value: Any) -> str:
    """Return the value of a setting as text without paths, URLs and secrets."""
    if declaration.name in _ADDRESSES:
        uris = [value] if isinstance(value, str) else value or ()
        return ", ".join(map(_describe_address, uris)) or "none"
    if value is None or value in ((), {}):
        return (declaration.default_text or "not set").replace("`", "")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if declaration.is_size:
        return format_size(value)
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) else format_number(value)
    if declaration.choices:
        return str(value)
    return "set" if isinstance(value, (str, Path)) else f"{len(value)} set"


def _describe_address(text: str) -> str:
    uri = DataUri.parse(text)
    if not uri.host and uri.port is None:
        return f"{uri.scheme}://"  # a local socket, whose address is a path
    return uri.replace(path="", extra=(), ticket=None).address


def _list_versions() -> list[tuple[str, str]]:
    return [
        ("splitarrow", package_version()),
        ("Python", platform.python_version()),
        ("pyarrow", version("pyarrow")),
    ]


def format_number(number: float) -> str:
    """Return a number with separators of thousands.

    Examples
    --------
    >>> format_number(1234567)
    '1,234,567'
    """
    return f"{number:,.0f}"


def format_duration(seconds: float) -> str:
    """Return a time with its two largest units. A line does not break between number and unit.

    Examples
    --------
    >>> times = [format_duration(seconds) for seconds in (0.42, 59, 61, 7384, 180000)]
    >>> [time.replace("\u00a0", " ") for time in times]
    ['0.4 s', '59 s', '1 min 1 s', '2 h 3 min', '2 d 2 h']
    """
    if seconds < 10:
        return f"{seconds:.1f}\u00a0s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    left, parts = int(seconds), list[str]()
    for unit, length in units:
        amount, left = divmod(left, length)
        if amount or parts:
            parts.append(f"{amount}\u00a0{unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0\u00a0"))


def _format_size(nbytes: float) -> str:
    return format_bytes(nbytes).replace(" ", "\u00a0")


def _quote_segment(text: str) -> str:
    return quote(text, safe="")


def _format_ago(seconds: float) -> str:
    return "just now" if seconds < 2 else f"{format_duration(seconds)} ago"
