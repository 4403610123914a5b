"""The methods of arrow.flight.protocol.FlightService."""

from __future__ import annotations

from typing import Any

import grpc
from anyio import to_thread

from ...errors import remote_error
from ...proto import Flight_pb2 as flight
from .actions import Actions
from .call import Call, parsed
from .descriptors import criteria, described
from .do_get import Sender
from .do_put import Receiver
from .handshake import Greeter
from .info import Informer
from .reception import Reception

FLIGHT_SERVICE = "arrow.flight.protocol.FlightService"


class FlightService:
    """Puts the methods together.

    Parameters
    ----------
    informer : Informer
        Describes datasets.
    sender, receiver, greeter, actions
        Serve the methods that are more than a question and an answer.
    """

    def __init__(
        self,
        informer: Informer,
        sender: Sender,
        receiver: Receiver,
        greeter: Greeter,
        actions: Actions,
    ) -> None:
        self._informer = informer
        self._sender = sender
        self._receiver = receiver
        self._greeter = greeter
        self._actions = actions

    def handler(self, reception: Reception) -> Any:
        """Return gRPC's handler for the service."""
        methods = {
            "Handshake": reception.conversing(self._greeter.handshake, greets=True),
            "ListFlights": reception.streaming(self._list_flights),
            "GetFlightInfo": reception.unary(self._get_flight_info),
            "PollFlightInfo": reception.unary(self._poll_flight_info),
            "GetSchema": reception.unary(self._get_schema),
            "DoGet": reception.streaming(self._sender.do_get),
            "DoPut": reception.conversing(self._receiver.do_put),
            "DoExchange": reception.conversing(self._do_exchange),
            "DoAction": reception.streaming(self._actions.do_action),
            "ListActions": reception.streaming(self._actions.list_actions),
        }
        return grpc.method_handlers_generic_handler(FLIGHT_SERVICE, methods)

    async def _list_flights(self, call: Call, message: bytes) -> None:
        wanted = criteria(parsed(flight.Criteria, message).expression)
        for name in call.visible():
            if wanted.match(name):
                info = await to_thread.run_sync(self._informer.listed, call, name)
                if info is not None:
                    await call.write(info.SerializeToString())

    async def _info(self, call: Call, message: bytes) -> flight.FlightInfo:
        descriptor = parsed(flight.FlightDescriptor, message)
        request = described(descriptor)
        return await to_thread.run_sync(self._informer.info, call, request, descriptor)

    async def _get_flight_info(self, call: Call, message: bytes) -> bytes:
        return (await self._info(call, message)).SerializeToString()

    async def _poll_flight_info(self, call: Call, message: bytes) -> bytes:
        info = await self._info(call, message)
        return flight.PollInfo(info=info, progress=1.0).SerializeToString()

    async def _get_schema(self, call: Call, message: bytes) -> bytes:
        request = described(parsed(flight.FlightDescriptor, message))
        schema = await to_thread.run_sync(self._informer.schema, call, request)
        return flight.SchemaResult(schema=schema).SerializeToString()

    async def _do_exchange(self, call: Call) -> None:
        del call
        raise remote_error(
            "UNIMPLEMENTED", "this server has no DoExchange: read with DoGet, write with DoPut"
        )
