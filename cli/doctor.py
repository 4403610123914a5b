"""``splitarrow doctor``: show what works on this machine, and why the rest does not."""

from __future__ import annotations

import json
import os
import platform
import resource
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ..client.stream.format_choice import CHOOSER
from ..errors import MissingExtraError, SplitArrowError
from ..formats.text import format_bytes
from .connection import AsJson, ConnectTimeout, Token, with_tls_options
from .formatting import escape_text
from .reachability import Line, check_servers, describe_server, is_usable
from .terminal import make_console, standard_output

_PACKAGES = (
    "pyarrow",
    "anyio",
    "grpcio",
    "protobuf",
    "joserfc",
    "libucx-cu12",
    "vortex-data",
    "torch",
    "pyspark",
)
_CAP_LEASE = 28
_MIN_FILES = 4096
_MIN_SHM_BYTES = 1 << 30
_MIN_MEMORY_BYTES = 1 << 30


def collect_versions() -> dict[str, str | None]:
    """Return the versions of the software in use, by name. None means "not installed"."""
    from .. import __version__

    found: dict[str, str | None] = {
        "splitarrow": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def check_transports() -> list[dict[str, Any]]:
    """Return for each transport whether it is available, and the reason if it is not."""
    from ..transport.registry import list_schemes

    found = [_check_transport(scheme) for scheme in list_schemes()]
    return [*found, _check_flight()]


def _check_transport(scheme: str) -> dict[str, Any]:
    from ..protocol.uri import DataUri
    from ..transport.registry import find_transport

    try:
        diagnosis = find_transport(DataUri(scheme)).diagnose()
    except (SplitArrowError, ImportError, OSError) as error:
        return {"scheme": scheme, "available": False, "reason": str(error)}
    problem = diagnosis.problem
    report: dict[str, Any] = {"scheme": scheme, "available": problem is None, "reason": problem}
    if diagnosis.detail is not None:
        report["detail"] = diagnosis.detail
    if diagnosis.hints is not None:
        report["hints"] = diagnosis.hints
    return report


def _check_flight() -> dict[str, Any]:
    reason = None
    try:
        import grpc  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        reason = str(error)
    return {"scheme": "flight", "available": reason is None, "reason": reason}


def check_java() -> dict[str, Any]:
    """Return the Java that Spark would use, or the reason why Spark cannot run."""
    from ..pipeline import find_java

    try:
        found = find_java()
    except SplitArrowError as error:
        return {"available": False, "reason": str(error)}
    return {
        "available": True,
        "version": found.version,
        "origin": found.origin,
        "executable": str(found.executable),
    }


def check_limits() -> list[dict[str, Any]]:
    """Return the relevant limits of this machine, with advice for low ones."""
    rows = [
        _check_open_files(),
        _check_locked_memory(),
        _check_shared_memory(),
        _check_memory(),
        _check_processors(),
        _check_file_leases(),
    ]
    return [row for row in rows if row is not None]


def _make_limit(name: str, value: str, advice: str | None = None) -> dict[str, Any]:
    return {"name": name, "value": value, "advice": advice}


def _check_open_files() -> dict[str, Any]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _make_limit("open files", "unlimited")
    advice = f"raise it for many readers: ulimit -n {_MIN_FILES}"
    return _make_limit(
        "open files", f"{soft} (at most {hard})", advice if soft < _MIN_FILES else None
    )


def _check_locked_memory() -> dict[str, Any]:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = soft == resource.RLIM_INFINITY
    return _make_limit("locked memory", "unlimited" if unlimited else format_bytes(soft))


def _check_shared_memory() -> dict[str, Any]:
    try:
        status = os.statvfs("/dev/shm")
    except OSError as error:
        return _make_limit("/dev/shm", "absent", f"UCX cannot share memory: {error.strerror}")
    free = status.f_bavail * status.f_frsize
    value = f"{format_bytes(free)} free of {format_bytes(status.f_blocks * status.f_frsize)}"
    advice = "small for UCX between processes of one host; in a container, use --shm-size"
    return _make_limit("/dev/shm", value, advice if free < _MIN_SHM_BYTES else None)


def _check_memory() -> dict[str, Any] | None:
    found = _read_memory_bytes()
    if found is None:
        return None
    total, free = found
    advice = "little memory is left for batches" if free < _MIN_MEMORY_BYTES else None
    return _make_limit("memory", f"{format_bytes(free)} free of {format_bytes(total)}", advice)


def _check_processors() -> dict[str, Any]:
    return _make_limit("processors", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}")


def _check_file_leases() -> dict[str, Any]:
    from ..transport.memory.files import describe_refusal, take_file_lease

    try:
        with tempfile.NamedTemporaryFile() as written, open(written.name, "rb") as file:
            written.file.close()
            take_file_lease(file.fileno())
    except OSError as error:
        advice = (
            f"{describe_refusal(error)}; a server notices by modification times only that a "
            "file changes"
        )
        return _make_limit("file leases", "none", advice)
    if _has_capability(_CAP_LEASE):
        return _make_limit("file leases", "for files of every user, on local file systems")
    return _make_limit(
        "file leases",
        "for this user's files, on local file systems",
        "for files of other users, give the server CAP_LEASE, or publish the datasets",
    )


def _has_capability(number: int) -> bool:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        effective = next(line for line in lines if line.startswith("CapEff:"))
        return bool(int(effective.split()[1], 16) >> number & 1)
    except (OSError, StopIteration, ValueError):
        return False


def _read_memory_bytes() -> tuple[int, int] | None:
    """Return the total and the free memory in bytes: those of the container, if it has a limit."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        values = {
            line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines if "kB" in line
        }
        total, free = values["MemTotal"], values["MemAvailable"]
    except (OSError, KeyError, ValueError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # there is no such file, or it contains "max"
        return total, free
    return min(total, limit), max(0, min(free, limit - used))


def check_vortex() -> dict[str, Any]:
    """Return whether arrays can be decoded, and at which rate in bytes of Arrow per second."""
    try:
        return {"available": True, "decoding_rate": round(CHOOSER.measure_decoding())}
    except MissingExtraError as error:
        return {"available": False, "reason": error.message}


_REQUIRED = ("splitarrow", "python", "pyarrow", "anyio", "grpcio")
_SYMBOLS = {"good": ("✓", "green"), "note": ("!", "yellow"), "bad": ("✗", "red")}


@with_tls_options
def doctor(
    uri: Annotated[
        str | None,
        typer.Argument(
            help="A control plane to connect to, and a dataset to read: "
            "[cyan]grpc://host:port/NAME[/cyan]. By default, the first dataset.",
            metavar="CONTROL_URI",
        ),
    ] = None,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Check this machine, and the connection to a server.

    It shows versions, transports and limits. Of a server, it shows the certificate and the clock,
    reads a row of a dataset at each location, and explains which transport a read uses. The exit
    status is 1 if a required package is missing, the server does not respond, or the dataset
    cannot be read.

    [dim]splitarrow doctor grpc://host:8815[/dim]

    [dim]splitarrow doctor grpc://host:8815/trips[/dim]
    """
    report: dict[str, Any] = {
        "versions": collect_versions(),
        "transports": check_transports(),
        "java": check_java(),
        "limits": check_limits(),
        "vortex": check_vortex(),
    }
    if uri is not None:
        report["servers"] = check_servers(uri, token, connect_timeout)
    complete = all(report["versions"].get(name) for name in _REQUIRED)
    good = complete and all(map(is_usable, report.get("servers", ())))
    with standard_output():
        if as_json:
            print(json.dumps({"good": good, **report}, ensure_ascii=False))
        else:
            make_console().print(_table(report))
    if not good:
        raise typer.Exit(1)


def _table(report: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for line in _lines(report):
        if line is None:
            table.add_row()
        else:
            symbol, style = _SYMBOLS[line.rating]
            name, text = escape_text(line.name), escape_text(line.text)
            table.add_row(Text(symbol, style), Text(name), Text(text))
    return table


def _lines(report: dict[str, Any]) -> Iterator[Line | None]:
    """Yield the lines of a report. None is an empty one."""
    for name, found in report["versions"].items():
        rating = "good" if found else "bad" if name in _REQUIRED else "note"
        yield Line(rating, name, found or "not installed")
    yield _java_line(report["java"])
    yield _vortex_line(report["vortex"])
    yield None
    for transport in report["transports"]:
        rating = "good" if transport["available"] else "note"
        text = transport["reason"] or transport.get("detail") or "available"
        yield Line(rating, transport["scheme"], text)
        for hint in transport.get("hints", ()):
            yield Line("note", "", hint)
    yield None
    for limit in report["limits"]:
        advice = limit["advice"]
        text = f"{limit['value']}: {advice}" if advice else limit["value"]
        yield Line("note" if advice else "good", limit["name"], text)
    for server in report.get("servers", ()):
        yield None
        yield from describe_server(server, report["versions"]["splitarrow"])


def _vortex_line(vortex: dict[str, Any]) -> Line:
    if not vortex["available"]:
        return Line("note", "vortex", vortex["reason"])
    rate = f"{vortex['decoding_rate'] / 1e6:,.0f} MB/s"
    return Line("good", "vortex", f"arrays decode to {rate} of Arrow")


def _java_line(java: dict[str, Any]) -> Line:
    if not java["available"]:
        return Line("note", "java", java["reason"])
    return Line("good", "java", f"{java['version']}, by {java['origin']}: {java['executable']}")
