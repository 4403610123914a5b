"""The methods of arrow.flight.protocol.FlightService."""

from __future__ import annotations

from typing import Any

import grpc
from anyio import to_thread

from ...errors import remote_error
from ...proto import Flight_pb2 as flight
from .actions import ActionHandler
from .call import Call, parse_message
from .descriptors import compile_criteria, parse_descriptor
from .do_get import DoGetHandler
from .do_put import DoPutHandler
from .handshake import HandshakeHandler
from .info import FlightInfoBuilder
from .interceptor import FLIGHT_SERVICE, CallInterceptor


class FlightService:
    """Maps the methods of the service to their handlers.

    Parameters
    ----------
    infos : FlightInfoBuilder
        Describes datasets.
    do_get, do_put, handshake, actions
        The handlers of the methods with the same names.
    """

    def __init__(
        self,
        infos: FlightInfoBuilder,
        do_get: DoGetHandler,
        do_put: DoPutHandler,
        handshake: HandshakeHandler,
        actions: ActionHandler,
    ) -> None:
        self._infos = infos
        self._do_get = do_get
        self._do_put = do_put
        self._handshake = handshake
        self._actions = actions

    def handler(self, interceptor: CallInterceptor) -> Any:
        """Return gRPC's handler for the service."""
        unary, bidirectional = interceptor.unary, interceptor.bidirectional
        streaming = interceptor.server_streaming
        handlers = [
            bidirectional("Handshake", self._handshake.handshake, authenticates=True),
            streaming("ListFlights", self._list_flights),
            unary("GetFlightInfo", self._get_flight_info, for_reads=True),
            unary("PollFlightInfo", self._poll_flight_info),
            unary("GetSchema", self._get_schema),
            streaming("DoGet", self._do_get.do_get, for_reads=True),
            bidirectional("DoPut", self._do_put.do_put),
            bidirectional("DoExchange", self._do_exchange),
            streaming("DoAction", self._actions.do_action),
            streaming("ListActions", self._actions.list_actions),
        ]
        return grpc.method_handlers_generic_handler(FLIGHT_SERVICE, dict(handlers))

    async def _list_flights(self, call: Call, message: bytes) -> None:
        criteria = compile_criteria(parse_message(flight.Criteria, message).expression)
        for name in call.list_datasets():
            if criteria.match(name):
                info = await to_thread.run_sync(self._infos.build_listing, call, name)
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
        return await to_thread.run_sync(self._infos.build_info, call, request, descriptor)

    async def _get_schema(self, call: Call, message: bytes) -> bytes:
        request = parse_descriptor(parse_message(flight.FlightDescriptor, message))
        schema = await to_thread.run_sync(self._infos.build_schema, call, request)
        return flight.SchemaResult(schema=schema).SerializeToString()

    async def _do_exchange(self, call: Call) -> None:
        del call
        raise remote_error(
            "UNIMPLEMENTED",
            "this server does not support DoExchange: read with DoGet, write with DoPut",
        )
