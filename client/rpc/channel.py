"""One gRPC channel to the Flight service of a server."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import grpc

from ...errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    DeniedError,
    LimitError,
    SplitArrowError,
    StallError,
    UsageError,
)
from ...formats.flight_data import ISSUER_REQUEST, KEEP_ALIVE_HEADER, PLAN_HEADER
from ...proto import Flight_pb2 as flight
from ...protocol.uri import DataUri
from ...transport.grpc_usage import GRPC_USAGE
from ...transport.tls_options import TlsOptions, check_tls
from ..failures import FailureMemory
from ..stream.tracing import current_context
from ..tokens import Token, parse_token, renew_token
from .errors import NO_RESPONSE, convert_grpc_error, explain_listener
from .logins import find_login

_SERVICE = "/arrow.flight.protocol.FlightService/"
_MAX_MESSAGE_BYTES = (1 << 31) - 1
MAX_ANSWER_BYTES = 1 << 28
"""The largest size of the responses to a call that sends no data, in bytes."""
_CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Pings detect an idle connection that has died, and keep it known to NATs. The timeout is also
    # TCP_USER_TIMEOUT: a request that no ACK confirms for so long ends its connection.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 3_500),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Without its own pool, closing one channel would cut others of this process.
    ("grpc.use_local_subchannel_pool", 1),
]


REPEATS = 2
"""How often a call is repeated. The first time, gRPC may still use the connection that has died."""
_REPEAT_PAUSE_SECONDS = 0.05
_PHASES = {"ListActions": "connecting", "GetFlightInfo": "planning", "GetSchema": "planning"}
"""The phases of a read that call a method."""


_deadline: ContextVar[float | None] = ContextVar("_deadline", default=None)


@contextmanager
def limit_calls(seconds: float | None) -> Generator[None]:
    """Let the calls of this context end within some seconds, as well as within their own limit."""
    token = _deadline.set(None if seconds is None else time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


class DatasetHold:
    """A dataset that the client holds at a server.

    While the server drains, it continues to serve reads of the datasets that clients hold. A hold
    ends with `release`, and with the connection.
    """

    def __init__(self, call: Any) -> None:
        self._call = call

    def release(self) -> None:
        """End the hold. Idempotent."""
        if not GRPC_USAGE.is_blocked:
            self._call.cancel()


def _pause_before_repeat(failure: SplitArrowError, left: float, repeats: int) -> float:
    """Pause, and return the seconds left to repeat a call; raise its error if it must not be."""
    left -= _REPEAT_PAUSE_SECONDS
    if not (repeats and isinstance(failure, ConnectionLostError) and left > 0):
        raise failure
    time.sleep(_REPEAT_PAUSE_SECONDS)
    return left


class FlightChannel:
    """A channel to the Flight service of one server. Safe to use from several threads.

    Errors and representations never contain the token. The timeout is for calls that transfer no
    data, and `connect_timeout` for each attempt to connect, in seconds.

    Each call sends the current token of its source. If the server refuses it, before it does
    anything else, and the source then has another one, the call is repeated once.
    """

    def __init__(
        self,
        uri: DataUri,
        token: Token | None,
        tls: TlsOptions | None,
        timeout: float,
        connect_timeout: float = 10.0,
    ) -> None:
        check_tls(tls)
        self.uri = uri
        """The control plane."""
        self.address = uri.address
        """The control plane, as scheme, host and port."""
        self.tls = tls
        """Certificates for this channel and for the data connections that its server offers."""
        self.failed_locations = FailureMemory()
        """The locations that could not be reached."""
        self.plans_by_do_get = True
        """Whether the server may send data with its plan. False once it has not."""
        self._token = parse_token(token)
        self._sent: tuple[str, ...] = ()
        """The last tokens that were sent, which no error quotes."""
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._metadata = [("splitarrow-host", uri.host)] if uri.host.isascii() else []
        self._closed = False
        self._open()

    def _open(self) -> None:
        GRPC_USAGE.add(self)
        self._channel = _open_channel(self.uri, self.tls, self._connect_timeout)

    def call_unary(
        self,
        method: str,
        message: bytes,
        *,
        dataset: str | None = None,
        timeout: float | None = None,
        repeats: int = REPEATS,
    ) -> bytes:
        """Call a method that has one response and changes nothing, and return the response.

        If the connection is lost, the call is repeated over a new one, within its time limit.
        """
        token = self.current_token()
        try:
            return self.send_unary(token, method, message, dataset, timeout, repeats)
        except DeniedError as error:
            renewed = self.renew_token(token, error)
        return self.send_unary(renewed, method, message, dataset, timeout, repeats)

    def send_unary(
        self,
        token: str | None,
        method: str,
        message: bytes,
        dataset: str | None,
        timeout: float | None,
        repeats: int,
    ) -> bytes:
        """Call a method with a token; see `call_unary`."""
        call = self._channel.unary_unary(_SERVICE + method)
        limit, started = self.call_limit(timeout), time.monotonic()
        try:
            return cast(bytes, call(message, timeout=limit, **self._call_options(token)))
        except grpc.RpcError as error:
            seconds = time.monotonic() - started
            failure = self.convert_error(error, dataset, method=method, seconds=seconds)
        left = _pause_before_repeat(failure, limit - seconds, repeats)
        return self.send_unary(token, method, message, dataset, left, repeats - 1)

    def call_stream(
        self,
        method: str,
        message: bytes,
        *,
        dataset: str | None = None,
        timeout: float | None = None,
        repeats: int = REPEATS,
        wait: bool = False,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> Iterator[bytes]:
        """Call a method that streams its responses, and yield them; see `call_unary`.

        An action may change something, so it is not repeated. With `wait`, the call waits for a
        connection while attempts fail. Raises `LimitError` if the responses do not end.
        """
        token = self.current_token()
        arguments = method, message, dataset, timeout, repeats, wait, max_bytes
        has_begun = False
        try:
            for response in self.send_stream(token, *arguments):
                has_begun = True
                yield response
            return
        except DeniedError as error:
            if has_begun:
                raise
            renewed = self.renew_token(token, error)
        yield from self.send_stream(renewed, *arguments)

    def send_stream(
        self,
        token: str | None,
        method: str,
        message: bytes,
        dataset: str | None,
        timeout: float | None,
        repeats: int,
        wait: bool,
        max_bytes: int,
    ) -> Iterator[bytes]:
        """Call a method with a token; see `call_stream`."""
        call = self._channel.unary_stream(_SERVICE + method)
        limit, started = self.call_limit(timeout), time.monotonic()
        repeats = 0 if method == "DoAction" else repeats
        options = self._call_options(token) | ({"wait_for_ready": True} if wait else {})
        try:
            responses: Any = call(message, timeout=limit, **options)
            nbytes = 0
            for response in responses:
                repeats = 0
                nbytes += len(response)
                if nbytes > max_bytes:
                    responses.cancel()
                    raise LimitError(
                        f"{self.address} answers {method} with more than {max_bytes} bytes"
                    )
                yield response
            return
        except grpc.RpcError as error:
            seconds = time.monotonic() - started
            failure = self.convert_error(error, dataset, method=method, seconds=seconds)
        left = _pause_before_repeat(failure, limit - seconds, repeats)
        yield from self.send_stream(
            token, method, message, dataset, left, repeats - 1, wait, max_bytes
        )

    def do_get(
        self, message: bytes, keep_alive_seconds: float | None = None, plan: str | None = None
    ) -> Any:
        """Start DoGet and return the gRPC call, an iterator of serialized FlightData.

        A server that has nothing to send for `keep_alive_seconds` sends a keep-alive. `plan`: the
        value of `PLAN_HEADER`.
        """
        options = self._call_options(self.current_token())
        if plan is not None:
            options["metadata"] = [*options["metadata"], (PLAN_HEADER, plan)]
        if keep_alive_seconds is not None:
            interval = str(max(round(keep_alive_seconds * 1000), 1))
            options["metadata"] = [*options["metadata"], (KEEP_ALIVE_HEADER, interval)]
        return self._channel.unary_stream(_SERVICE + "DoGet")(message, **options)

    def do_put(self, messages: Iterator[bytes]) -> Any:
        """Start DoPut and return the gRPC call, an iterator of serialized PutResults."""
        options = self._call_options(self.current_token())
        return self._channel.stream_stream(_SERVICE + "DoPut")(messages, **options)

    def hold_dataset(self, name: str) -> DatasetHold:
        """Hold a dataset during a read of several parts. This does not wait for the server.

        A server that does not know the action ignores it.
        """
        return self.send_hold(self.current_token(), name)

    def send_hold(self, token: str | None, name: str) -> DatasetHold:
        """Hold a dataset with a token; see `hold_dataset`."""
        message = flight.Action(type="hold", body=name.encode()).SerializeToString()
        call = self._channel.unary_stream(_SERVICE + "DoAction")
        return DatasetHold(call(message, **self._call_options(token)))

    def ask_issuer(self) -> bytes:
        """Return the description of the server's issuer of tokens; see `ISSUER_REQUEST`.

        Raises `NotFoundError` if it has none, and `DeniedError` if it does not know the request.
        """
        message = flight.HandshakeRequest(payload=ISSUER_REQUEST).SerializeToString()
        call = self._channel.stream_stream(_SERVICE + "Handshake")
        options = self._call_options(None)
        try:
            responses: Any = call(iter([message]), timeout=self.call_limit(), **options)
            response = next(responses, b"")
        except grpc.RpcError as error:
            raise self.convert_error(error) from None
        return flight.HandshakeResponse.FromString(response).payload

    def check_connection(self, timeout: float) -> None:
        """Wait, at most so many seconds, until the server has responded and accepted the token.

        Raise `ConnectError` if it does not respond or another service listens at the address, and
        `DeniedError` if it rejects the token.
        """
        started = time.monotonic()
        try:
            try:
                list(self.call_stream("ListActions", b"", timeout=timeout))
            except ConnectError as error:
                left = timeout - (time.monotonic() - started)
                if NO_RESPONSE not in error.message or left <= 0:
                    raise
                # The kernel gives an attempt up earlier than the caller.
                list(self.call_stream("ListActions", b"", timeout=left, wait=True))
        except StallError:
            raise ConnectError(
                f"cannot connect to {self.address}: no response within {timeout:g} s; "
                "check the address, the port and firewalls"
            ) from None
        except ConnectError:
            found = explain_listener(self.uri)
            if found is None:
                raise
            raise ConnectError(f"cannot connect to {self.address}: {found}") from None

    def convert_error(
        self,
        error: grpc.RpcError,
        dataset: str | None = None,
        *,
        closed: bool = False,
        method: str = "",
        seconds: float = 0.0,
    ) -> SplitArrowError:
        """Return the splitarrow exception for a gRPC error; see `convert_grpc_error`."""
        return convert_grpc_error(
            error,
            self.address,
            dataset=dataset,
            secrets=self._sent,
            closed=closed or self._closed,
            phase=_PHASES.get(method, method),
            seconds=seconds,
        )

    def call_limit(self, timeout: float | None = None) -> float:
        """Return the time limit of a call that starts now, in seconds."""
        deadline, limit = _deadline.get(), timeout or self._timeout
        return limit if deadline is None else max(min(limit, deadline - time.monotonic()), 0.001)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the client of {self.address} is closed")

    def current_token(self) -> str | None:
        """Return the token to send; None if there is none.

        If the caller has given none, it is that of the login at the server.
        """
        if self._token is None:
            self._token = find_login(self.address)
        return None if self._token is None else self._token.current()

    def reject_token(self) -> None:
        """Record that the server refused the last token, so that later calls send another one."""
        if self._token is not None and self._sent:
            self._token.reject(self._sent[-1])

    def renew_token(self, refused: str | None, error: DeniedError) -> str:
        """Return another token than one that the server has refused; raise its error without."""
        return renew_token(self._token, refused, error)

    def _call_options(self, token: str | None) -> dict[str, Any]:
        self._check_open()
        GRPC_USAGE.check_process()
        metadata = self._metadata.copy()
        if token is not None:
            if token not in self._sent:
                self._sent = (*self._sent[-1:], token)
            metadata.append(("authorization", f"Bearer {token}"))
        context = current_context()
        headers = [] if context is None else context.headers()
        return {"metadata": [*metadata, *headers]}

    def close(self) -> None:
        """Cancel all calls and close the channel. Idempotent."""
        self._closed = True
        if not GRPC_USAGE.is_blocked:
            self._channel.close()
        GRPC_USAGE.discard(self)


def _open_channel(uri: DataUri, tls: TlsOptions | None, connect_timeout: float) -> Any:
    # gRPC gives this time to an attempt that goes on. After one that fails, it retries earlier.
    attempt = ("grpc.min_reconnect_backoff_ms", max(round(connect_timeout * 1000), 1))
    options = [*_CHANNEL_OPTIONS, attempt]
    host = f"[{uri.host}]" if ":" in uri.host else uri.host
    target = f"{host}:{uri.port}"
    if uri.scheme != "grpc+tls":
        return grpc.insecure_channel(target, options)
    tls = tls or TlsOptions.from_environment()
    if not tls.check_name:
        raise UsageError(
            "grpc+tls:// always checks the name in the certificate; "
            "set server_name in place of check_name=False"
        )
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.secure_channel(target, _load_credentials(tls), options)


def _load_credentials(tls: TlsOptions) -> Any:
    ca, cert, key = (_read_pem(path) for path in (tls.ca_file, tls.cert_file, tls.key_file))
    return grpc.ssl_channel_credentials(ca, key or cert, cert)


def _read_pem(path: Any) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
