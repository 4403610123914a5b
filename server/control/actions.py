"""DoAction: operations such as ``status``, ``cancel``, ``publish`` and ``reload``."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, TypeGuard

import anyio

from ...errors import InvalidRequestError, NotFoundError, SplitArrowError, remote_error
from ...formats.arrow.lengths import encode_lengths
from ...proto import Flight_pb2 as flight
from ...protocol.request import Request
from ...publication.manifest import encode_manifest
from ..addresses import control_uri, http_uri, parse_peer
from ..auth.principal import Permission
from ..caller import NO_UPLOADS, run_in_thread
from ..catalog.dataset import ServedDataset
from ..catalog.delta import DeltaDataset, DeltaVersion
from ..catalog.published import PublishedDataset
from ..context import RelayService
from ..logs import get_logger
from ..metrics import Histogram, Sample, list_stats, merge_samples
from ..reload import ReloadReport
from ..report import StreamReport, package_version
from ..uploads.publication import PublishRequest, check_job
from ..uploads.store import UploadStore
from .call import Call, parse_message

_TOTALS = {
    "started_streams": "streams",
    "sent_rows": "rows",
    "sent_bytes": "bytes",
    "mapped_bytes": "bytes",
}
"""The metrics by dataset, and their names in the response."""
_PART_BYTES = 1 << 20
_MAX_ANNOUNCEMENT_BYTES = 1 << 20
_MAX_READER_CHARACTERS = 128
_IDENTITY_SECONDS = 60.0
"""The longest time that another server may use what it was told about a token."""
_CACHES = {
    "cache_hits": "hits",
    "cache_misses": "misses",
    "cache_bytes": "bytes",
    "cache_limit_bytes": "limit_bytes",
    "cache_evictions": "evictions",
    "cache_rejections": "rejections",
    "cache_waiting_readers": "waiting_readers",
}
"""The metrics by cache, and their names in the response."""


def describe_status(call: Call, started: float) -> dict[str, Any]:
    """Return the state of the server, for JSON, as far as the caller may see it.

    It asks all processes of the server: call it on a worker thread. The time of the start is in
    seconds on the monotonic clock.
    """
    server = call.server
    reports = server.reporter.reports(streams=True)
    samples = merge_samples(report.samples for report in reports)
    totals = _sum_by_label(samples, _TOTALS)
    sent = {name: total for name, total in totals.items() if _may_read(call, name)}
    streams = [
        _describe_stream(stream)
        for report in reports
        for stream in report.streams
        if _may_read(call, stream.dataset)
    ]
    relay = server.relay
    sent_bytes = sum(total["bytes"] for total in totals.values())
    return {
        "version": package_version(),
        "time": round(time.time(), 3),
        "advertised": _list_advertised(call),
        "uptime_seconds": round(time.monotonic() - started, 3),
        "draining": server.draining.is_set(),
        "datasets": call.list_datasets(),
        **({} if relay is None else {"relay": _describe_relay(call, relay, sent_bytes)}),
        "sent": sent,
        "streams": streams,
        **(
            {
                "listen": [uri.redacted() for uri in server.uris],
                "stats": list_stats(samples),
                "caches": _sum_by_label(samples, _CACHES),
            }
            if call.principal.is_operator
            else {"stats": _sum_stats(sent, len(streams))}
        ),
    }


def _list_advertised(call: Call) -> dict[str, str]:
    """Return the addresses of the services that the caller can use, if they are advertised."""
    settings, reader = call.server.settings, parse_peer(call.peer)
    found: dict[str, str] = {}
    for name, uri in (("control", control_uri(settings)), ("http", http_uri(settings))):
        entry = None if uri is None else settings.advertised.find(uri.scheme, reader)
        if uri is not None and entry is not None:
            found[name] = entry.replace(uri).address
    return found


def _describe_relay(call: Call, relay: RelayService, sent_bytes: int) -> dict[str, Any]:
    """Return the state of the relay, whose daemon has sent so many bytes."""
    if not call.principal.is_operator:
        return {"offline": relay.is_offline}
    fetched = {source: int(n) for (source,), n in relay.metrics.relay_fetched_bytes.items()}
    return {
        "offline": relay.is_offline,
        "pinned_bytes": relay.metrics.relay_pinned_bytes,
        "upstream_errors": relay.metrics.relay_upstream_errors,
        "fetched_bytes": fetched,
        "saved_bytes": max(0, sent_bytes - fetched["upstream"]),
    }


def _find_relay(call: Call) -> RelayService:
    relay = call.server.relay
    if relay is None:
        raise remote_error("UNIMPLEMENTED", "this server is not a relay")
    return relay


def _sum_stats(sent: dict[str, Counter[str]], streams: int) -> dict[str, int]:
    """Return the part of `list_stats` that follows from what the caller may see."""
    total = sum(sent.values(), Counter[str]())
    return {
        "streams": streams,
        "streams_total": total["streams"],
        "rows": total["rows"],
        "bytes_sent": total["bytes"],
    }


def _sum_by_label(samples: list[Sample], names: dict[str, str]) -> dict[str, Counter[str]]:
    """Return the values of metrics by their first label, over all others."""
    totals = defaultdict[str, Counter[str]](Counter)
    for metric, labels, value in samples:
        name = names.get(metric.name)
        if name is not None and not isinstance(value, Histogram):
            totals[labels[0]][name] += int(value)
    return totals


def _list_versions(call: Call) -> dict[str, str]:
    versions: dict[str, str] = {}
    for name in call.list_datasets():
        with suppress(NotFoundError):  # removed just now
            versions[name] = call.find_dataset(name).version
    return versions


def _may_read(call: Call, dataset: str) -> bool:
    return call.principal.may(Permission.READ, dataset)


def _describe_stream(stream: StreamReport) -> dict[str, Any]:
    return {
        "stream": stream.number,
        "dataset": stream.dataset,
        "transport": stream.transport,
        "rows": stream.rows,
        "bytes": stream.nbytes,
        "seconds": round(stream.seconds, 3),
        "compression": stream.compression or "as requested",
    }


_Action = Callable[[Call, bytes], Awaitable[bytes]]


class ActionHandler:
    """Serves DoAction and ListActions. Without a store, it refuses what changes datasets.

    It calls `reload` on a worker thread; see `Reloader.reload`.
    """

    def __init__(self, store: UploadStore | None, reload: Callable[[], ReloadReport]) -> None:
        self._store = store
        self._reload = reload
        self._started = time.monotonic()
        self._log = get_logger("control")
        self._actions: dict[str, tuple[str, _Action]] = {
            "status": ("Return metrics and the running streams as JSON.", self._status),
            "versions": ("Return the versions of the datasets by name as JSON.", self._versions),
            "hold": (
                "Hold a dataset during a read of several parts, until the caller cancels: NAME",
                self._hold,
            ),
            "count": (
                "Count the rows of each record batch that a filter selects, as one JSON object for "
                'each shard: {"dataset": NAME, "filter": EXPRESSION}',
                self._count,
            ),
            "lengths": (
                "Return the lengths of the lists in a column, as Arrow IPC streams for each shard: "
                '{"dataset": NAME, "columns": [NAME], "filter": EXPRESSION}',
                self._lengths,
            ),
            "ranges": (
                "Return the ranges of columns, as one JSON object for each shard: "
                '{"dataset": NAME, "columns": NAMES}',
                self._ranges,
            ),
            "manifest": (
                'Return the manifest of a published dataset, in parts: {"dataset": NAME}',
                self._manifest,
            ),
            "announce": (
                "Announce the order in which a reader opens the shards of a published dataset: "
                '{"dataset": NAME, "reader": NAME, "shards": [ORDINAL], "position": INDEX}',
                self._announce,
            ),
            "cancel": (
                'Cancel a stream of the caller, or of anybody for an operator: {"stream": NUMBER}',
                self._cancel,
            ),
            "renew": ("Exchange an unused ticket for a new one.", self._renew),
            "drop": ("Remove an uploaded or published dataset: NAME", self._drop),
            "publish": ("Make uploaded shards a version of a dataset: JSON", self._publish),
            "discard": (
                'Remove the uploaded shards of a job: {"dataset": NAME, "job": JOB}',
                self._discard,
            ),
            "reload": ("Read the configuration again.", self._reload_configuration),
            "relay": ("Describe the relay as JSON, if the server is one.", self._describe_relay),
            "identity": (
                "Return the name and the grants for reading of the caller as JSON, and for how "
                "many seconds they hold.",
                self._identify,
            ),
            "pin": (
                "Keep the shards of published datasets in the cache of a relay, or no longer: "
                '{"datasets": [NAME], "pinned": true}',
                self._pin,
            ),
            "CancelFlightInfo": ("Cancel the streams of a FlightInfo.", self._cancel_info),
            "RenewFlightEndpoint": ("Renew the ticket of an endpoint.", self._renew_endpoint),
        }

    async def list_actions(self, call: Call, message: bytes) -> None:
        """Send the types and descriptions of all actions."""
        del message
        for name, (description, _) in self._actions.items():
            action = flight.ActionType(type=name, description=description)
            await call.write(action.SerializeToString())

    async def do_action(self, call: Call, message: bytes) -> None:
        """Run an action and send its result."""
        action = parse_message(flight.Action, message)
        try:
            _, run = self._actions[action.type]
        except KeyError:
            names = ", ".join(self._actions)
            raise remote_error(
                "UNIMPLEMENTED", f"no action {action.type[:80]!r}; the actions are {names}"
            ) from None
        result = await run(call, action.body)
        await call.write(flight.Result(body=result).SerializeToString())

    async def _status(self, call: Call, body: bytes) -> bytes:
        del body
        return _encode_json(await run_in_thread(describe_status, call, self._started))

    async def _versions(self, call: Call, body: bytes) -> bytes:
        del body
        return _encode_json(await run_in_thread(_list_versions, call))

    async def _describe_relay(self, call: Call, body: bytes) -> bytes:
        del body
        return _find_relay(call).encode_description()

    async def _pin(self, call: Call, body: bytes) -> bytes:
        relay = _find_relay(call)
        call.principal.require_operator()
        fields = _decode_object(body)
        names, is_pinned = fields.get("datasets"), fields.get("pinned", True)
        if not _is_list_of_names(names) or not isinstance(is_pinned, bool):
            raise InvalidRequestError(
                'the body of the action must be {"datasets": [NAME], "pinned": true or false}'
            )
        pins = await run_in_thread(partial(relay.pin, names, is_pinned=is_pinned))
        self._log.info("pins changed", pins=pins["pins"], principal=call.principal.name)
        return _encode_json(pins)

    async def _identify(self, call: Call, body: bytes) -> bytes:
        del body
        caller = call.principal
        left = inf if caller.expires is None else max(caller.expires - time.time(), 0.0)
        return _encode_json(
            {
                "name": caller.name,
                "read": [grants.read for grants in (caller.grants, *caller.limits)],
                "seconds": min(_IDENTITY_SECONDS, left),
            }
        )

    async def _cancel(self, call: Call, body: bytes) -> bytes:
        number = _decode_object(body).get("stream")
        if not isinstance(number, int):
            raise InvalidRequestError('the body of the action must be {"stream": NUMBER}')
        owner = None if call.principal.is_operator else call.principal.name
        if not await run_in_thread(call.server.reporter.cancel_number, number, owner):
            whose = "is running" if owner is None else "of the caller is running"
            raise NotFoundError(f"no stream {number} {whose}")
        self._log.info("stream cancelled", stream=number, principal=call.principal.name)
        return _encode_json({"cancelled": number})

    async def _cancel_info(self, call: Call, body: bytes) -> bytes:
        """Cancel the running streams of a FlightInfo, and use up its signed tickets."""
        info = parse_message(flight.CancelFlightInfoRequest, body).info
        status = flight.CANCEL_STATUS_NOT_CANCELLABLE
        cancel_ticket = call.server.reporter.cancel_ticket
        for endpoint in info.endpoint:
            ticket = endpoint.ticket.ticket
            running = await run_in_thread(cancel_ticket, ticket, call.principal.name)
            if running or await self._use_up(call, ticket):
                status = flight.CANCEL_STATUS_CANCELLED
        return flight.CancelFlightInfoResult(status=status).SerializeToString()

    async def _use_up(self, call: Call, ticket: bytes) -> bool:
        """Use up a signed ticket of the caller, and return whether it was one."""
        try:
            claims = await call.redeem_ticket(ticket)
        except SplitArrowError:
            return False
        return claims.signed

    async def _renew(self, call: Call, body: bytes) -> bytes:
        claims = await call.redeem_ticket(body)
        call.authorize(Permission.READ, claims.request.dataset)
        return call.server.access.issue_ticket(claims.request, call.principal.name)

    async def _renew_endpoint(self, call: Call, body: bytes) -> bytes:
        endpoint = parse_message(flight.RenewFlightEndpointRequest, body).endpoint
        signer = call.server.access.signer
        if signer is not None:
            endpoint.expiration_time.FromSeconds(signer.next_expiry())
        endpoint.ticket.ticket = await self._renew(call, endpoint.ticket.ticket)
        return endpoint.SerializeToString()

    async def _hold(self, call: Call, body: bytes) -> bytes:
        """Count a read of the dataset as in progress, until the caller cancels or disconnects."""
        name = _decode_name(body)
        call.find_dataset(name)
        with call.server.reads.hold(name):
            await anyio.sleep_forever()
        return b""

    async def _count(self, call: Call, body: bytes) -> bytes:
        """Send the rows of each record batch, shard by shard. The last shard is the result."""
        dataset, parts = await self._list_shards(call, Request.parse(body))
        server, result = call.server, b""
        for part in parts:
            if result:
                await call.write(flight.Result(body=result).SerializeToString())
            async with server.read_slots.slot_for(part, call.principal.name):
                rows = await run_in_thread(
                    dataset.count_rows, part, server.encoding, limiter=server.threads
                )
            result = _encode_json({"shard": part.shard, "version": part.version, "rows": rows})
        return result

    async def _lengths(self, call: Call, body: bytes) -> bytes:
        """Send the lengths in each shard, in parts. The last part is the result."""
        request = Request.parse(body)
        if request.columns is None:
            raise InvalidRequestError("the request names no column", stream=request.dataset)
        dataset, parts = await self._list_shards(call, request)
        server, result = call.server, b""
        run = partial(run_in_thread, limiter=server.threads)
        for part in parts:
            slot = server.read_slots.slot_for(part, call.principal.name)
            measures = await run(dataset.measure_batches, part, server.encoding)
            header = {"shard": part.shard, "version": part.version}
            with closing(measures), closing(encode_lengths(header, measures)) as streams:
                while True:
                    async with slot:
                        stream = await run(next, streams, None)
                    if stream is None:
                        break
                    if result:
                        await call.write(flight.Result(body=result).SerializeToString())
                    result = stream
        return result

    async def _list_shards(
        self, call: Call, request: Request
    ) -> tuple[ServedDataset, list[Request]]:
        """Return the version of a dataset that a request is for, and a request for each shard."""
        dataset = call.find_dataset(request.dataset)
        call.check_draining(request)
        run = partial(run_in_thread, limiter=call.server.threads)
        if isinstance(dataset, (DeltaDataset, PublishedDataset)):
            dataset = await run(dataset.resolve_version, request)
        version = await run(lambda: dataset.version)
        if request.version is None or isinstance(dataset, DeltaVersion):
            request = replace(request, version=version)
        shards = await run(lambda: len(dataset.shards))
        selected = range(shards) if request.shard is None else [request.shard]
        return dataset, [replace(request, shard=shard) for shard in selected]

    async def _ranges(self, call: Call, body: bytes) -> bytes:
        """Send the ranges of the columns, shard by shard. The last shard is the result."""
        request = Request.parse(body)
        dataset = call.find_dataset(request.dataset)
        if not isinstance(dataset, PublishedDataset):
            raise remote_error(
                "UNIMPLEMENTED", f"{request.dataset!r} is not a published dataset: it has no ranges"
            )
        run = partial(run_in_thread, limiter=call.server.threads)
        version = await run(dataset.resolve_version, request)
        result = b""
        for shard in version.list_ranges(request.columns):
            if result:
                await call.write(flight.Result(body=result).SerializeToString())
            result = _encode_json({"version": version.version, **shard})
        return result

    async def _manifest(self, call: Call, body: bytes) -> bytes:
        """Send the manifest of a version, in parts. The last part is the result."""
        request = Request.parse(body)
        dataset = call.find_dataset(request.dataset)
        if not isinstance(dataset, PublishedDataset):
            raise remote_error("UNIMPLEMENTED", f"{request.dataset!r} is not a published dataset")
        run = partial(run_in_thread, limiter=call.server.threads)
        version = await run(dataset.resolve_version, request)
        data = await run(encode_manifest, version.manifest)
        *others, last = (
            data[begin : begin + _PART_BYTES] for begin in range(0, len(data), _PART_BYTES)
        )
        for part in others:
            await call.write(flight.Result(body=part).SerializeToString())
        return last

    async def _announce(self, call: Call, body: bytes) -> bytes:
        """Note the order of a reader, and return whether a cache uses it."""
        if len(body) > _MAX_ANNOUNCEMENT_BYTES:
            raise InvalidRequestError(
                f"the announcement has {len(body)} bytes; the limit is {_MAX_ANNOUNCEMENT_BYTES}"
            )
        values = _decode_object(body)
        name, version, reader = (values.get(key) for key in ("dataset", "version", "reader"))
        ordinals, position = values.get("shards"), values.get("position", 0)
        if (
            not (isinstance(name, str) and isinstance(reader, str))
            or not (version is None or isinstance(version, str))
            or not 0 < len(reader) <= _MAX_READER_CHARACTERS
            or not _is_count(position)
            or not isinstance(ordinals, list)
            or not all(map(_is_count, ordinals))
        ):
            raise InvalidRequestError(
                'the body of the action must be {"dataset": NAME, "reader": NAME, '
                '"shards": [ORDINAL], "position": INDEX}'
            )
        dataset = call.find_dataset(name)
        used = False
        if isinstance(dataset, PublishedDataset):
            request, owner = Request(name, version=version), (call.principal.name, reader)
            used = await run_in_thread(
                *(dataset.announce, request, owner, ordinals, position),
                limiter=call.server.threads,
            )
        return _encode_json({"used": used})

    async def _drop(self, call: Call, body: bytes) -> bytes:
        name = _decode_name(body)
        store = self._authorize_write(call, name)
        await run_in_thread(store.drop, name)
        return _encode_json({"dropped": name})

    async def _publish(self, call: Call, body: bytes) -> bytes:
        request = PublishRequest.parse(body)
        store = self._authorize_write(call, request.dataset)
        return _encode_json(await run_in_thread(store.publications.publish, request))

    async def _discard(self, call: Call, body: bytes) -> bytes:
        values = _decode_object(body)
        name, job = values.get("dataset"), values.get("job")
        if not isinstance(name, str):
            raise InvalidRequestError(
                'the body of the action must be {"dataset": NAME, "job": JOB}'
            )
        store = self._authorize_write(call, name)
        await run_in_thread(store.publications.discard, name, check_job(job))
        return _encode_json({"discarded": job})

    def _authorize_write(self, call: Call, name: str) -> UploadStore:
        call.authorize(Permission.WRITE, name)
        if self._store is None:
            raise remote_error("FAILED_PRECONDITION", NO_UPLOADS)
        return self._store

    async def _reload_configuration(self, call: Call, body: bytes) -> bytes:
        del body
        call.principal.require_operator()
        outcome = await run_in_thread(self._reload)
        return _encode_json(outcome.as_json())


def _decode_name(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError("the name of the dataset is not UTF-8") from None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _encode_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _is_list_of_names(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _decode_object(body: bytes) -> dict[str, Any]:
    """Return a JSON object; an empty one for any other JSON value."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidRequestError("the body of the action is not JSON") from None
    return value if isinstance(value, dict) else {}
