"""``splitarrow top``: watch what a running server sends."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from ..errors import SplitArrowError, UsageError
from .connection import AsJson, ConnectTimeout, ControlUri, Token, open_client
from .options import flag, option
from .rates import Rates, Report, Sample, compute_rates
from .tables import make_console
from .terminal import is_terminal, standard_output
from .tls_options import with_tls_options

if TYPE_CHECKING:
    from rich.console import Group

    from ..client.connect import AnyClient

_MIN_INTERVAL = 0.1


@with_tls_options
def top(
    uri: ControlUri,
    once: Annotated[bool, flag("--once", help="Print one view, and exit.")] = False,
    interval: Annotated[
        float,
        option(help="The time between two updates, in seconds.", metavar="SECONDS"),
    ] = 2.0,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Watch the streams, rates, leases and shared memory of a server.

    The view is updated until Ctrl-C. With --once, with --json, or if standard output is not a
    terminal, one view is printed, with the rates of one interval. It shows the streams of the
    datasets that you can read, the fastest first.

    [dim]splitarrow top grpc://host:8815[/dim]
    """
    if interval < _MIN_INTERVAL:
        raise UsageError(f"--interval {interval:g} must be at least {_MIN_INTERVAL:g} seconds")
    with open_client(uri, token, connect_timeout) as client:
        if once or as_json or not is_terminal(sys.stdout):
            before, after = _sample(client), _sample(client, interval)
            with standard_output():
                if as_json:
                    print(json.dumps(_describe(before, after), ensure_ascii=False))
                else:
                    make_console().print(_render(before, after))
        else:
            with suppress(KeyboardInterrupt):
                _watch(client, interval)


def _watch(client: AnyClient, interval: float) -> None:
    """Update the view until Ctrl-C. A server that does not respond may return."""
    from rich.live import Live

    console = make_console()
    before = _sample(client)
    after = before
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(_render(before, after, console.height), refresh=True)
            try:
                before, after = after, _sample(client, interval)
            except SplitArrowError as error:
                failed = Sample(time.monotonic(), {"error": str(error)})
                before, after = {client.uri: failed}, {client.uri: failed}


def _sample(client: AnyClient, delay: float = 0.0) -> dict[str, Sample]:
    """Return a sample of each server, after a delay in seconds."""
    time.sleep(delay)
    report = client.status()
    seconds = time.monotonic()
    reports: dict[str, Report] = report.get("daemons", {client.uri: report})
    return {uri: Sample(seconds, report) for uri, report in reports.items()}


def _pairs(
    before: dict[str, Sample], after: dict[str, Sample]
) -> Iterator[tuple[str, Report, Rates]]:
    """Yield the address, the status and the rates of each server."""
    for uri, sample in after.items():
        earlier = before.get(uri, sample)
        if "error" in sample.report or "error" in earlier.report:
            earlier = sample
        yield uri, sample.report, compute_rates(earlier, sample)


def _render(
    before: dict[str, Sample], after: dict[str, Sample], height: int | None = None
) -> Group:
    from rich.console import Group
    from rich.text import Text

    from .top_view import render

    lines = None if height is None else height // len(after)
    parts: list[Any] = []
    for uri, report, rates in _pairs(before, after):
        parts += [Text()] if parts else []
        parts.append(render(uri, report, rates, lines))
    return Group(*parts)


def _describe(before: dict[str, Sample], after: dict[str, Sample]) -> dict[str, Any]:
    """Return the view for JSON: the status with the rates of one server, or of several."""
    described = {
        uri: dict(report) if "error" in report else {**report, "rates": rates.as_json()}
        for uri, report, rates in _pairs(before, after)
    }
    (first, *rest) = described.values()
    return {"daemons": described} if rest else first
