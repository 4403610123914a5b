"""DoPut: a stream of FlightData becomes a dataset or a shard, completely or not at all."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial

from ...errors import InvalidRequestError, ProtocolError, remote_error
from ...formats.flight_data import FlightData, parse_flight_data
from ...proto import Flight_pb2 as flight
from ..caller import NO_UPLOADS
from ..context import UploadService
from ..receiving import Patience
from ..uploads.publication import ShardKey, parse_object, read_text
from ..uploads.store import DatasetTarget
from .call import Call, parse_message


class DoPutHandler:
    """Serves DoPut. Without a receiver, it refuses uploads."""

    def __init__(self, receiver: UploadService | None) -> None:
        self._receiver = receiver

    async def do_put(self, call: Call, requests: object) -> None:
        """Receive an upload; see `UploadReceiver.receive`."""
        del requests  # `Call.read` returns them
        if self._receiver is None:
            raise remote_error("UNIMPLEMENTED", NO_UPLOADS)
        patience = Patience(call.server.settings)
        first = await _receive(call, patience)
        if first is None or first.descriptor is None:
            raise InvalidRequestError("the first message of an upload must have a descriptor")
        descriptor = parse_message(flight.FlightDescriptor, bytes(first.descriptor))
        target = _parse_target(descriptor)
        fields = await self._receiver.receive(call, target, _list_messages(call, patience, first))
        response = json.dumps(fields, ensure_ascii=False).encode()
        await call.write(flight.PutResult(app_metadata=response).SerializeToString())


async def _receive(call: Call, patience: Patience) -> FlightData | None:
    """Return the next message, or None at the end."""
    message = call.context.read_ready()
    if message is None:
        message = await patience.wait(call.read)
    else:
        patience.earn(len(message))
    try:
        return None if message is None else parse_flight_data(message)
    except ProtocolError as error:
        raise InvalidRequestError(error.message) from None


async def _list_messages(
    call: Call, patience: Patience, first: FlightData
) -> AsyncIterator[FlightData]:
    """Yield the first message and the others, up to the end that the client has sent."""
    data: FlightData | None = first
    while data is not None:
        yield data
        data = await _receive(call, patience)


def _parse_target(descriptor: flight.FlightDescriptor) -> DatasetTarget | ShardKey:
    """Return what the data becomes: a dataset, and what it may replace, or a shard.

    A path replaces nothing. A command can.
    """
    if descriptor.type == flight.FlightDescriptor.CMD and descriptor.cmd[:1] == b"{":
        values = parse_object(descriptor.cmd, "the command of the upload")
        if set(values) - {"attempt"} != {"dataset", "if_exists"}:
            return ShardKey.parse(values)
        if (if_exists := values["if_exists"]) not in ("error", "replace"):
            raise InvalidRequestError(f"if_exists is {if_exists!r}; use 'error' or 'replace'")
        dataset = read_text(values, "dataset")
        attempt = read_text(values, "attempt") if "attempt" in values else ""
        if if_exists == "replace":
            return DatasetTarget(dataset, attempt=attempt)
    elif descriptor.type == flight.FlightDescriptor.PATH and len(descriptor.path) == 1:
        dataset, attempt = descriptor.path[0], ""
    else:
        raise InvalidRequestError(
            "the descriptor of an upload must be a path of one element, the name of the dataset"
        )
    return DatasetTarget(dataset, partial(_refuse_replacement, dataset), attempt)


def _refuse_replacement(dataset: str, version: str | None) -> None:
    if version is not None:
        command = json.dumps({"dataset": dataset, "if_exists": "replace"}, ensure_ascii=False)
        raise remote_error(
            "ALREADY_EXISTS",
            f"cannot upload {dataset!r}: the dataset exists; to replace it, pass "
            'if_exists="replace", or --replace to splitarrow put; in a Flight client, send the '
            f"command {command}",
            stream=dataset,
        )
