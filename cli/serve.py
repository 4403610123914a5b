"""``splitarrow serve``: the daemon."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..errors import ConfigError, UsageError
from .figures import parse_size
from .output import is_terminal
from .publishing import KeepVersions, ObjectCache, ObjectCacheBytes, PollSeconds
from .wording import flag, option

if TYPE_CHECKING:
    from ..server.config import ServerSettings
    from ..server.daemon import Daemon

_DATA = "Data"
_CONTROL = "Control plane"
_LIMITS = "Limits"
_SHARED = "Shared memory"
_LOG = "Log"
_RIGHTS = "Rights"


def serve(
    datasets: Annotated[
        list[str] | None,
        typer.Argument(
            help="What to serve: a name, and the path of an Arrow IPC file or stream, a Parquet "
            "file, a folder of those, or the folder or URL of a published dataset. Without NAME= "
            "the file's name, less its suffix, is the name.",
            metavar="NAME=PATH",
        ),
    ] = None,
    listen: Annotated[
        list[str] | None,
        option(
            help="Where to listen for readers; may be given several times. Port 0 picks a free "
            "one; [cyan]?stream=metadata[/cyan] or [cyan]?stream=body[/cyan] serves one of the "
            "two streams; [cyan]shm:///PATH[/cyan] is a socket for readers on this host, which map "
            "the data.",
            default="tcp://127.0.0.1:8816, and shared memory for readers on this host",
            metavar="URI",
        ),
    ] = None,
    control: Annotated[
        str | None,
        option(
            help="Where the control plane listens, an Arrow Flight service, as in "
            "[cyan]grpc://127.0.0.1:8815[/cyan].",
            default="nowhere",
            metavar="URI",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        option(
            help="The host in the addresses that the control plane hands out, where readers "
            "reach this one by another name.",
            metavar="HOST",
            panel=_CONTROL,
        ),
    ] = None,
    writable: Annotated[
        Path | None,
        option(
            help="A folder for what is uploaded; without one nothing can be.",
            metavar="FOLDER",
            panel=_CONTROL,
        ),
    ] = None,
    writable_bytes: Annotated[
        int | None,
        option(
            min=1,
            help="The most that all uploads together may take, in bytes.",
            default="what the disk has",
            metavar="BYTES",
            panel=_CONTROL,
        ),
    ] = None,
    upload_bytes: Annotated[
        int | None,
        option(
            min=1,
            help="The most that one upload may take, in bytes.",
            default="as much as all together",
            metavar="BYTES",
            panel=_CONTROL,
        ),
    ] = None,
    reflection: Annotated[
        bool | None,
        option(
            "--reflection/--no-reflection",
            help="Let gRPC tools ask the control plane what it offers.",
            default="no",
            panel=_CONTROL,
        ),
    ] = None,
    ready_file: Annotated[
        Path | None,
        option(
            help="A file that gets one JSON object, with the URI of every dataset, once every "
            "address is bound.",
            metavar="FILE",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        option(
            help="A TOML file with settings. Variables SPLITARROW_… win over it, and options "
            "over both; the datasets of all three are served.",
            metavar="FILE",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        option(
            min=1,
            help="How many processes share the addresses.",
            default="1",
            metavar="N",
        ),
    ] = None,
    drain_seconds: Annotated[
        float | None,
        option(
            min=0,
            help="How long running streams may go on after SIGTERM or Ctrl-C, in seconds; a "
            "second signal cuts them.",
            default="30",
            metavar="SECONDS",
        ),
    ] = None,
    compression: Annotated[
        Literal["none", "lz4", "zstd"] | None,
        option(
            help="How data travels to readers that do not ask for another way.",
            default="as it lies",
            panel=_DATA,
        ),
    ] = None,
    batch_rows: Annotated[
        int | None,
        option(
            min=1,
            help="The largest number of rows in a batch.",
            default="as they lie",
            metavar="ROWS",
            panel=_DATA,
        ),
    ] = None,
    keep_versions: KeepVersions = None,
    poll_seconds: PollSeconds = None,
    object_cache: ObjectCache = None,
    object_cache_bytes: ObjectCacheBytes = None,
    max_connections: Annotated[
        int | None,
        option(
            min=1,
            help="How many connections a process serves; more are told RESOURCE_EXHAUSTED.",
            default="4096",
            metavar="N",
            panel=_LIMITS,
        ),
    ] = None,
    idle_seconds: Annotated[
        float | None,
        option(
            help="How long a connection without a stream is kept, in seconds.",
            default="600",
            metavar="SECONDS",
            panel=_LIMITS,
        ),
    ] = None,
    shm_cache: Annotated[
        str | None,
        option(
            help="How much of what was written into memory for readers on this host is kept once "
            "nobody reads it, as in 4GiB.",
            default="a quarter of the memory",
            metavar="SIZE",
            panel=_SHARED,
        ),
    ] = None,
    shm_copy: Annotated[
        bool | None,
        flag("--shm-copy", help="Let readers map copies of files, never the files.", panel=_SHARED),
    ] = None,
    shm_trust: Annotated[
        bool | None,
        flag(
            "--shm-trust",
            help="Let readers map files that cannot be guarded against changes, too.",
            panel=_SHARED,
        ),
    ] = None,
    max_leased: Annotated[
        str | None,
        option(
            help="How much one user may hold of the server's memory at a time, as in 2GiB.",
            default="any amount",
            metavar="SIZE",
            panel=_SHARED,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        option(
            help="A TOML file with bearer tokens and what each may read and write.",
            metavar="FILE",
            panel=_RIGHTS,
        ),
    ] = None,
    jwks: Annotated[
        str | None,
        option(
            help="The public keys of who issues JSON Web Tokens.",
            metavar="FILE|URL",
            panel=_RIGHTS,
        ),
    ] = None,
    jwt_issuer: Annotated[
        str | None,
        option(
            help="What their claim iss has to be.",
            metavar="TEXT",
            panel=_RIGHTS,
        ),
    ] = None,
    jwt_audience: Annotated[
        str | None,
        option(
            help="What their claim aud has to be, or to hold.",
            metavar="TEXT",
            panel=_RIGHTS,
        ),
    ] = None,
    ticket_key_file: Annotated[
        Path | None,
        option(
            help="Keys for tickets, for several servers that take each other's.",
            metavar="FILE",
            panel=_RIGHTS,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        option(
            help="The certificate for tcp+tls and grpc+tls addresses, in PEM.",
            metavar="FILE",
            panel=_RIGHTS,
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        option(
            help="Its key; without this it is in the same file.",
            metavar="FILE",
            panel=_RIGHTS,
        ),
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        option(
            help="Ask clients for a certificate of one of these authorities.",
            metavar="FILE",
            panel=_RIGHTS,
        ),
    ] = None,
    insecure: Annotated[
        bool | None,
        flag(
            "--insecure",
            help="Serve everybody on the network, where no token is asked for.",
            panel=_RIGHTS,
        ),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        option(
            help="The least severe event that is logged.",
            default="info",
            panel=_LOG,
        ),
    ] = None,
    log_format: Annotated[
        Literal["auto", "console", "json"] | None,
        option(
            help="How events are logged, on standard error: for people, or one JSON object each.",
            default="auto: for people on a terminal",
            panel=_LOG,
        ),
    ] = None,
) -> int:
    """Serve datasets until SIGTERM or Ctrl-C.

    On a terminal it says what it serves, and how to fetch it.

    [dim]splitarrow serve flights=flights.arrow trips=trips/ --control grpc://127.0.0.1:8815[/dim]
    """
    given = named(datasets or [])
    from ..server.config import load_settings

    try:
        settings = load_settings(
            config,
            datasets=given or None,
            listen=tuple(listen) if listen else None,
            control=control,
            advertise=advertise,
            writable=writable,
            writable_bytes=writable_bytes,
            upload_bytes=upload_bytes,
            reflection=reflection,
            ready_file=ready_file,
            compression=compression,
            batch_rows=batch_rows,
            keep_versions=keep_versions,
            poll_seconds=poll_seconds,
            object_cache=object_cache,
            object_cache_bytes=None
            if object_cache_bytes is None
            else parse_size(object_cache_bytes),
            workers=workers,
            max_connections=max_connections,
            idle_seconds=idle_seconds,
            drain_seconds=drain_seconds,
            shm_cache=None if shm_cache is None else parse_size(shm_cache),
            shm_copy=shm_copy,
            shm_trust=shm_trust,
            max_leased=None if max_leased is None else parse_size(max_leased),
            token_file=token_file,
            jwks=jwks,
            jwt_issuer=jwt_issuer,
            jwt_audience=jwt_audience,
            ticket_key_file=ticket_key_file,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            insecure=insecure,
            log_level=log_level,
            log_format=log_format,
        )
    except ConfigError as error:
        raise UsageError(str(error)) from None
    if not settings.datasets and settings.writable is None:
        raise UsageError("there is nothing to serve: name a dataset, as in flights=flights.arrow")
    from ..server.process import serve_process

    return serve_process(settings, describe if _is_for_people(settings) else None)


def named(arguments: list[str]) -> dict[str, str]:
    """Return the names and paths that arguments stand for.

    Examples
    --------
    >>> named(["trips=data/t.arrow", "data/flights.arrow"])
    {'trips': 'data/t.arrow', 'flights': 'data/flights.arrow'}

    Raises
    ------
    UsageError
        If a name or a path is missing, or a name stands for two paths.
    """
    found: dict[str, str] = {}
    for argument in arguments:
        name, separator, path = argument.partition("=")
        # A path may have an = of its own, as year=2026/ does.
        if not separator or (Path(argument).exists() and not Path(path).exists()):
            name, path = Path(argument).resolve().stem, argument
        if not name or not path:
            raise UsageError(f"{argument!r}: a dataset is given as NAME=PATH")
        if found.setdefault(name, path) != path:
            raise UsageError(f"two datasets are named {name!r}: {found[name]} and {path}")
    return found


def _is_for_people(settings: ServerSettings) -> bool:
    """Tell whether people read the output; elsewhere the log and the ready file say the same."""
    if settings.log_format == "auto":
        return is_terminal(sys.stdout)
    return settings.log_format == "console"


def describe(daemon: Daemon) -> None:
    """Say on standard output what a daemon serves, and how to fetch it."""
    from .banner import print_banner

    print_banner(daemon)
