"""Connect to a server: the arguments and options that several commands share.

A command connects before it imports the modules that read data, so it fails at once where nothing
listens.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..client.tokens import TokenSource, parse_token
from ..client.uris import parse_control_uris, split_dataset
from ..errors import ConnectError, UriError, UsageError
from ..protocol.uri import DataUri, Streams
from .formatting import escape_text
from .options import flag, option, with_parameters
from .terminal import print_message

if TYPE_CHECKING:
    from ..client.connect import AnyClient
    from ..client.dataset.client import Client


F = TypeVar("F", bound=Callable[..., Any])

_PREFIX = "SPLITARROW_"
_CERT, _KEY, _TOKEN_FILE = "tls_cert", "tls_key", "token_file"
TOKEN_VARIABLE = "SPLITARROW_TOKEN"
"""The environment variable for the token."""
TOKEN_FILE_VARIABLE = "SPLITARROW_CLIENT_TOKEN_FILE"
"""The environment variable for the file of the token. ``SPLITARROW_TOKEN_FILE`` is a setting of
servers."""
PANEL = "Connection"
"""The heading of options about connections."""
_OPTIONS = {
    _TOKEN_FILE: (
        "FILE",
        "A file with your bearer token, which is read again after a change.",
    ),
    "tls_ca": ("FILE", "The authorities to trust, in PEM, instead of the system's."),
    _CERT: ("FILE", "Your certificate, in PEM, for servers that require one."),
    _KEY: ("FILE", "The key of your certificate, in PEM, unless --tls-cert contains it."),
    "tls_server_name": (
        "NAME",
        "The name that the server's certificate must have, instead of the host of the URI.",
    ),
}


def with_tls_options(command: F) -> F:
    """Add ``--tls-ca``, ``--tls-cert``, ``--tls-key`` and ``--tls-server-name`` to a command.

    One with ``--token`` gets ``--token-file`` as well. A command keeps the options that it has.
    While the command runs, the others replace variables such as ``SPLITARROW_TLS_CA``, from which
    every connection takes its certificates, also in the processes that the command starts.
    """
    own = signature(command, eval_str=True).parameters
    added = [name for name in _OPTIONS if name not in own]
    if "token" not in own or _TOKEN_FILE not in added:
        added = [name for name in added if name != _TOKEN_FILE]

    @wraps(command)
    def run(*values: Any, **arguments: Any) -> Any:
        given = {name: arguments.pop(name, None) for name in added}
        with _environment(given):
            return command(*values, **arguments)

    decorated: Any = with_parameters([*own.values(), *map(_parameter, added)])(run)
    return decorated


def _parameter(name: str) -> Parameter:
    metavar, help = _OPTIONS[name]
    panel = PANEL if name == _TOKEN_FILE else "TLS"
    declaration = option(help=help, default=f"${_variable(name)}", metavar=metavar, panel=panel)
    annotation = Annotated[str | None, declaration]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _variable(name: str) -> str:
    return TOKEN_FILE_VARIABLE if name == _TOKEN_FILE else _PREFIX + name.upper()


@contextmanager
def _environment(given: Mapping[str, str | None]) -> Generator[None]:
    """Set the variables of the options that are given, and restore them at the end."""
    changed = {_variable(name): value for name, value in given.items() if value}
    cert, key = _variable(_CERT), _variable(_KEY)
    if key in changed and not (changed.get(cert) or os.environ.get(cert)):
        raise UsageError("--tls-key needs --tls-cert")
    removed = [key] if cert in changed and key not in changed else []
    if TOKEN_FILE_VARIABLE in changed:
        removed.append(TOKEN_VARIABLE)
    before = {name: os.environ.get(name) for name in (*changed, *removed)}
    os.environ.update(changed)
    for name in removed:
        os.environ.pop(name, None)  # the environment's key, or its token
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_KNOCK_SECONDS = 1.0
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""The variables that let gRPC connect to another address."""


def connect_first(
    uris: list[str], ticket: str | None, timeout: float
) -> AbstractContextManager[None]:
    """Connect to a server over TCP, for the reader of the URI in the returned context.

    The context does nothing for other transports, for a pair of URIs, and for an invalid or
    incomplete URI. Raises `ConnectError` if the connection fails.
    """
    try:
        uri = DataUri.parse(uris[0])
    except UriError:
        return nullcontext()
    is_complete = (
        bool(uri.path.strip("/"))
        if uri.ticket is None and ticket is None
        else (uri.want_data is not None and (uri.ticket is None) != (ticket is None))
    )
    is_complete = is_complete and uri.stream is Streams.BOTH
    has_socket = uri.scheme in ("tcp", "tcp+tls") and bool(uri.host)
    if len(uris) > 1 or not has_socket or not is_complete or timeout <= 0:
        return nullcontext()
    from ..transport.sockets import connected_early

    return connected_early(uri.replace(path=""), timeout)


def check_control_plane(uri: str, timeout: float) -> None:
    """Raise `ConnectError` if the address of a control plane refuses a connection.

    With several addresses, or behind a proxy, it does nothing.
    """
    from ..client.rpc.errors import explain_connect_failure

    addresses = parse_control_uris(uri)
    if len(addresses) > 1 or any(name in os.environ for name in _PROXIES) or timeout <= 0:
        return
    host, port = addresses[0].host, addresses[0].port or 0
    try:
        socket.create_connection((host, port), min(timeout, _KNOCK_SECONDS)).close()
    except ConnectionRefusedError as error:
        reason = explain_connect_failure(error.strerror or "", encrypted=False)
        raise ConnectError(f"cannot connect to {addresses[0].address}: {reason}") from None
    except OSError:
        pass  # gRPC may find another way, or explains why it does not


ControlUri = Annotated[
    str,
    typer.Argument(
        help="The control plane: [cyan]grpc://host:port[/cyan] or "
        "[cyan]grpc+tls://host:port[/cyan]. Several daemons that share datasets: "
        "[cyan]grpc://a,b:port[/cyan].",
        metavar="CONTROL_URI",
    ),
]
Token = Annotated[
    str | None,
    option(
        help=f"Your bearer token. Prefer {TOKEN_VARIABLE}: other users of this machine can read "
        "command lines.",
        default=f"${TOKEN_VARIABLE}",
        metavar="TOKEN",
        panel=PANEL,
    ),
]
ConnectTimeout = Annotated[
    float,
    option(help="The longest time to connect, in seconds.", metavar="SECONDS", panel=PANEL),
]
AsJson = Annotated[bool, flag("--json", help="Print JSON, for programs.")]
Quiet = Annotated[bool, flag("-q", "--quiet", help="Show no progress and no summary.")]


def locate(uri: str, name: str | None, command: str) -> tuple[str, str]:
    """Return the control plane and the dataset, which the URI or `name` names, but not both."""
    address, found = split_dataset(uri)
    if name is not None and found is not None:
        raise UsageError(f"{uri} already names a dataset; leave {name!r} out")
    if not (name or found):
        raise UsageError(
            f"name a dataset: splitarrow {command} {address} NAME "
            f"(splitarrow ls {address} lists the names)"
        )
    return address, name or found or ""


@contextmanager
def open_client(uri: str, token: str | None, connect_timeout: float) -> Generator[AnyClient]:
    """Connect to a control plane, or to several, while the context lasts.

    TLS uses the variables ``SPLITARROW_TLS_CA``, ``_CERT``, ``_KEY`` and ``_SERVER_NAME``.
    """
    from ..client.connect import connect
    from ..transport.tls_options import TlsOptions

    if connect_timeout <= 0:
        raise UsageError(f"--connect-timeout {connect_timeout:g} must be more than 0 seconds")
    tls = TlsOptions.from_environment()
    with connect(uri, resolve_token(token), tls=tls, connect_timeout=connect_timeout) as client:
        yield client


@contextmanager
def open_single_client(uri: str, token: str | None, connect_timeout: float) -> Generator[Client]:
    """Connect to one control plane while the context lasts; refuse a URI that names several."""
    with open_client(uri, token, connect_timeout) as client:
        from ..client.dataset.client import Client

        if not isinstance(client, Client):
            raise UsageError(f"this command works on one daemon; name one of {client.uri}")
        yield client


def report_unreachable(client: AnyClient) -> None:
    """Print on standard error which of several daemons did not respond."""
    from ..client.dataset.client import Client

    if not isinstance(client, Client):
        for uri, error in client.absent.items():
            print_message(f"splitarrow: warning: {escape_text(uri)}: {escape_text(str(error))}")


def resolve_token(token: str | None) -> TokenSource | None:
    """Return the token of the command line, or that of the environment."""
    if token:
        return parse_token(token)
    if found := os.environ.get(TOKEN_VARIABLE):
        return parse_token(found)
    return parse_token(None, os.environ.get(TOKEN_FILE_VARIABLE) or None)


OFFLINE = "cannot be reached; there may be newer versions"
"""The state of the upstream of a relay that is offline."""


def describe_schema(schema: Any) -> list[dict[str, str]]:
    """Return the names and types of the columns of a schema, for JSON."""
    return [{"name": field.name, "type": str(field.type)} for field in schema]


def describe_dataset(info: Any) -> dict[str, Any]:
    """Return the description of a dataset, for JSON."""
    return {
        "name": info.name,
        "rows": info.rows,
        "bytes": info.bytes,
        "kind": info.kind,
        "version": info.version,
        "writers": info.writers or None,
        **({"offline": True} if info.offline else {}),
        "columns": describe_schema(info.schema),
        **({"tensors": [asdict(tensor) for tensor in info.tensors]} if info.tensors else {}),
    }
