"""Calls of the Flight service: one channel, who calls, how long it may take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import grpc

from ..errors import ClosedError, ConnectError, StallError, UriError, UsageError
from ..protocol.uri import DataUri
from ..transport.certificates import TlsOptions
from .refusals import failure

SCHEMES = ("grpc", "grpc+tcp", "grpc+tls")
DEFAULT_PORT = 8815
_SERVICE = "/arrow.flight.protocol.FlightService/"
_LARGEST = (1 << 31) - 1
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", _LARGEST),
    ("grpc.max_send_message_length", _LARGEST),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Not one connection for all clients of a process: one that is closed must not cut another.
    ("grpc.use_local_subchannel_pool", 1),
]


def parse_control(uri: str | DataUri) -> DataUri:
    """Return the address of a control plane, with a port.

    Raises
    ------
    UriError
        If it is none.

    Examples
    --------
    >>> parse_control("grpc://host").port
    8815
    """
    parsed = DataUri.parse(uri) if isinstance(uri, str) else uri
    if parsed.scheme not in SCHEMES:
        raise UriError(
            f"{parsed.address} is no address of a control plane: it is grpc://host:port or "
            "grpc+tls://host:port"
        )
    if not parsed.host:
        raise UriError(f"{parsed.address} names no host")
    if parsed.path not in ("", "/") or parsed.want_data is not None or parsed.extra:
        raise UriError(f"{parsed.address} takes a host and a port, and no more")
    return parsed.replace(port=parsed.port or DEFAULT_PORT, path="")


def control_uris(uri: str | DataUri | Sequence[str | DataUri]) -> list[DataUri]:
    """Return the addresses of one or several control planes, none twice.

    Raises
    ------
    UriError
        If there is none, or one is malformed.

    Examples
    --------
    >>> [each.address for each in control_uris("grpc://a,b:9000")]
    ['grpc://a:8815', 'grpc://b:9000']
    """
    found: list[DataUri] = []
    for given in [uri] if isinstance(uri, (str, DataUri)) else uri:
        if isinstance(given, DataUri):
            found.append(parse_control(given))
            continue
        scheme = given.partition("://")[0]
        for text in given.split(","):
            each = text.strip()
            if not each:
                raise UriError(f"{given!r}: an address is missing between two commas")
            found.append(parse_control(each if "://" in each else f"{scheme}://{each}"))
    if not found:
        raise UriError("no address of a control plane")
    return list(dict.fromkeys(found))


class Caller:
    """Calls one server. Safe to use from several threads.

    Parameters
    ----------
    uri : DataUri
        As `parse_control` returns it.
    token : str or None
        The bearer token. No error, and no representation, shows it.
    tls : TlsOptions or None
        What to trust and to show to a ``grpc+tls://`` server; None: what the environment says.
    timeout : float
        The longest time that a call may take which moves no data, in seconds.
    """

    def __init__(
        self, uri: DataUri, token: str | None, tls: TlsOptions | None, timeout: float
    ) -> None:
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            raise UsageError("the token is no row of printable ASCII characters")
        self.uri = uri
        self.where = uri.address
        self._token = None if token is None else token.strip()
        self._timeout = timeout
        self._metadata = [("splitarrow-host", uri.host)] if uri.host.isascii() else []
        if self._token is not None:
            self._metadata.append(("authorization", f"Bearer {self._token}"))
        host = f"[{uri.host}]" if ":" in uri.host else uri.host
        target = f"{host}:{uri.port}"
        if uri.scheme == "grpc+tls":
            credentials, options = _credentials(tls or TlsOptions.from_environment())
            self._channel = grpc.secure_channel(target, credentials, [*_OPTIONS, *options])
        else:
            self._channel = grpc.insecure_channel(target, _OPTIONS)
        self._closed = False

    def unary(
        self,
        method: str,
        message: bytes,
        *,
        subject: str | None = None,
        timeout: float | None = None,
    ) -> bytes:
        """Call a method with one answer, and return it."""
        call = self._channel.unary_unary(_SERVICE + method)
        try:
            return cast(bytes, call(message, timeout=timeout or self._timeout, **self._who()))
        except grpc.RpcError as error:
            raise self.failure(error, subject) from None

    def several(
        self,
        method: str,
        message: bytes,
        *,
        subject: str | None = None,
        timeout: float | None = None,
    ) -> Iterator[bytes]:
        """Call a method with many answers, and yield them."""
        call = self._channel.unary_stream(_SERVICE + method)
        try:
            yield from call(message, timeout=timeout or self._timeout, **self._who())
        except grpc.RpcError as error:
            raise self.failure(error, subject) from None

    def download(self, message: bytes) -> Any:
        """Begin DoGet; return gRPC's call, an iterator of messages."""
        return self._channel.unary_stream(_SERVICE + "DoGet")(message, **self._who())

    def upload(self, messages: Iterator[bytes]) -> Any:
        """Begin DoPut; return gRPC's call, an iterator of answers."""
        return self._channel.stream_stream(_SERVICE + "DoPut")(messages, **self._who())

    def knock(self, timeout: float) -> None:
        """Find out whether the server answers, and knows the caller.

        Raises
        ------
        SplitArrowError
            Why it does not.
        """
        try:
            for _ in self.several("ListActions", b"", timeout=timeout):
                pass
        except StallError:
            raise ConnectError(
                f"cannot connect to {self.where}: no answer within {timeout:g} s"
            ) from None

    def failure(
        self, error: grpc.RpcError, subject: str | None = None, *, closed: bool = False
    ) -> Exception:
        """Return the exception of ours for one of gRPC's."""
        return failure(
            error, self.where, subject=subject, secret=self._token, closed=closed or self._closed
        )

    def _who(self) -> dict[str, Any]:
        if self._closed:
            raise ClosedError(f"the client of {self.where} is closed")
        return {"metadata": self._metadata}

    def close(self) -> None:
        """End all calls. Idempotent."""
        self._closed = True
        self._channel.close()


def _credentials(tls: TlsOptions) -> tuple[Any, list[tuple[str, Any]]]:
    if not tls.check_name:
        raise UsageError("grpc+tls:// checks the name in the certificate: set server_name instead")
    ca, cert, key = (_pem(path) for path in (tls.ca_file, tls.cert_file, tls.key_file))
    credentials = grpc.ssl_channel_credentials(ca, key or cert, cert)
    named = tls.server_name
    return credentials, [] if named is None else [("grpc.ssl_target_name_override", named)]


def _pem(path: Any) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
