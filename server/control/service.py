"""The methods of arrow.flight.protocol.FlightService, with descriptors and handshakes."""

from __future__ import annotations

import base64
import binascii
import json
import re
from fnmatch import translate
from functools import partial

import anyio

from ...errors import InvalidRequestError, NotFoundError, UnavailableError, remote_error
from ...formats.flight_data import ISSUER_REQUEST
from ...proto import Flight_pb2 as flight
from ...protocol.request import Request
from ..auth.issuer import describe_issuer
from ..auth.principal import unauthenticated
from ..caller import run_in_thread
from .actions import ActionHandler
from .call import Call, parse_message, read_field
from .do_get import DoGetHandler
from .do_put import DoPutHandler
from .grpc_server import Method
from .info import build_info, build_listing, build_schema
from .interceptor import FLIGHT_SERVICE, CallInterceptor

_MAX_CRITERIA_CHARACTERS = 1024
_QUERY_TYPE = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
_ANY_TYPE, _ANY_VALUE, _QUERY_TEXT = 1, 2, 1
"""The field numbers of google.protobuf.Any and of CommandStatementQuery."""
_ANY_START = re.compile(rb"\x0a.{1,2}type\.googleapis\.com/", re.DOTALL)


def parse_descriptor(descriptor: flight.FlightDescriptor) -> Request:
    """Return the request of a descriptor.

    A PATH has one element, the name of a dataset. A CMD is such a name in UTF-8, or a JSON object
    with the fields of `Request`. Clients of Flight SQL, such as ADBC, send either as the text of
    a query.
    """
    if descriptor.type == flight.FlightDescriptor.PATH:
        if len(descriptor.path) != 1:
            raise InvalidRequestError(
                f"the path of the descriptor has {len(descriptor.path)} elements; "
                "it must have one, the name of a dataset"
            )
        return _parse_request(descriptor.path[0].encode(), "path")
    if descriptor.type == flight.FlightDescriptor.CMD:
        return _parse_request(_unwrap_query(descriptor.cmd), "command")
    raise InvalidRequestError("the descriptor is neither a path nor a command")


def _unwrap_query(command: bytes) -> bytes:
    """Return the text of a Flight SQL query. Return any other command unchanged."""
    if not _ANY_START.match(command):
        return command
    if read_field(command, _ANY_TYPE) != _QUERY_TYPE:
        raise remote_error("UNIMPLEMENTED", "this server supports no Flight SQL except queries")
    return read_field(read_field(command, _ANY_VALUE), _QUERY_TEXT)


def _parse_request(data: bytes, source: str) -> Request:
    """Parse a path or a command. Errors name it, where `Request` names a ticket."""
    try:
        return Request(data.decode()) if source == "path" else Request.parse(data)
    except InvalidRequestError as error:
        problem = error.message.removeprefix("the ticket")
        if problem == error.message:
            raise
        raise InvalidRequestError(f"the {source}{problem}") from None


def compile_criteria(expression: bytes) -> re.Pattern[str]:
    """Return a pattern that matches the names to list; every name for an empty expression.

    Examples
    --------
    >>> bool(compile_criteria(b"fl*").match("flights")), bool(compile_criteria(b"").match("trips"))
    (True, True)
    """
    try:
        glob = expression.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError("the criteria are not UTF-8") from None
    if len(glob) > _MAX_CRITERIA_CHARACTERS:
        raise InvalidRequestError(
            f"the criteria have {len(glob)} characters; the limit is {_MAX_CRITERIA_CHARACTERS}"
        )
    return re.compile(translate(glob or "*"))


async def handshake(call: Call, requests: object) -> None:
    """Serve Handshake, in the two forms that Flight clients use.

    - With HTTP basic authentication in the headers of the call, the response has a bearer token
      in its headers.
    - With a token as the payload of the first message, the response repeats the token.

    With `ISSUER_REQUEST` as the payload, which needs no token, the response names the issuer.
    """
    del requests  # `Call.read` returns them
    scheme, _, credentials = call.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        await _exchange_password(call, credentials)
    else:
        await _check_token(call)


async def _exchange_password(call: Call, credentials: str) -> None:
    try:
        decoded = base64.b64decode(credentials, validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidRequestError("the Basic authorization header is malformed") from None
    username, _, password = decoded.partition(":")
    token = await call.server.access.exchange_password(username, password)
    call.context.send_initial_metadata((("authorization", f"Bearer {token}"),))


async def _check_token(call: Call) -> None:
    message: memoryview | None = None
    seconds = call.server.settings.handshake_seconds
    with anyio.move_on_after(seconds) as scope:
        message = await call.read()
    if scope.cancelled_caught:
        raise UnavailableError(f"the client sent nothing for {seconds:g} s")
    payload = b""
    if message is not None:
        payload = parse_message(flight.HandshakeRequest, message).payload
    access = call.server.access
    if payload == ISSUER_REQUEST:
        issuer = describe_issuer(call.server.settings)
        if issuer is None:
            raise NotFoundError("this server has no issuer of tokens")
        payload = json.dumps(issuer).encode()
    elif access.requires_token:
        try:
            token = payload.decode("ascii")
        except UnicodeDecodeError:
            raise unauthenticated("the token in the handshake must be ASCII") from None
        await access.authenticate({"authorization": f"Bearer {token}"})
    await call.write(flight.HandshakeResponse(payload=payload).SerializeToString())


class FlightService:
    """Maps the methods of the service to their handlers."""

    def __init__(self, do_get: DoGetHandler, do_put: DoPutHandler, actions: ActionHandler) -> None:
        self._do_get = do_get
        self._do_put = do_put
        self._actions = actions

    def methods(self, interceptor: CallInterceptor) -> dict[str, Method]:
        """Return the methods of the service by their paths."""
        single = interceptor.method
        several = partial(interceptor.method, reads_one=False)
        methods = {
            "Handshake": several("Handshake", handshake, authenticates=True),
            "ListFlights": single("ListFlights", self._list_flights),
            "GetFlightInfo": single("GetFlightInfo", self._get_flight_info, for_reads=True),
            "PollFlightInfo": single("PollFlightInfo", self._poll_flight_info),
            "GetSchema": single("GetSchema", self._get_schema),
            "DoGet": single("DoGet", self._do_get.do_get, for_reads=True),
            "DoPut": several("DoPut", self._do_put.do_put),
            "DoExchange": several("DoExchange", self._do_exchange),
            "DoAction": single("DoAction", self._actions.do_action),
            "ListActions": single("ListActions", self._actions.list_actions),
        }
        return {f"/{FLIGHT_SERVICE}/{name}": method for name, method in methods.items()}

    async def _list_flights(self, call: Call, message: bytes) -> None:
        criteria = compile_criteria(parse_message(flight.Criteria, message).expression)
        for name in call.list_datasets():
            if criteria.match(name):
                info = await run_in_thread(build_listing, call, name)
                if info is not None:
                    await call.write(info.SerializeToString())

    async def _get_flight_info(self, call: Call, message: bytes) -> bytes:
        return (await self._build_info(call, message)).SerializeToString()

    async def _poll_flight_info(self, call: Call, message: bytes) -> bytes:
        info = await self._build_info(call, message)
        return flight.PollInfo(info=info, progress=1.0).SerializeToString()

    async def _build_info(self, call: Call, message: bytes) -> flight.FlightInfo:
        descriptor = parse_message(flight.FlightDescriptor, message)
        request = parse_descriptor(descriptor)
        call.check_draining(request)
        return await run_in_thread(build_info, call, request, descriptor)

    async def _get_schema(self, call: Call, message: bytes) -> bytes:
        request = parse_descriptor(parse_message(flight.FlightDescriptor, message))
        schema = await run_in_thread(build_schema, call, request)
        return flight.SchemaResult(schema=schema).SerializeToString()

    async def _do_exchange(self, call: Call, requests: object) -> None:
        del call, requests
        raise remote_error(
            "UNIMPLEMENTED",
            "this server does not support DoExchange: read with DoGet, write with DoPut",
        )
