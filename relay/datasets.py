"""The datasets that a relay serves: cached ones, and those that pass through."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, TypeVar

import pyarrow as pa

from ..client.dataset.client import Client, read_request
from ..client.dataset.dataset import DatasetStream
from ..client.rpc.info import DatasetInfo, count_rows, list_lengths
from ..errors import InvalidRequestError, NotFoundError, RemoteError, SplitArrowError, remote_error
from ..formats.arrow.tensors.labels import is_tensor_content
from ..formats.arrow.tensors.tensor import AnyTensor
from ..protocol.request import FILE, Request
from ..publication.manifest import Manifest, ShardEntry
from ..publication.version_store import VersionStore
from ..server.catalog.dataset import (
    Encoding,
    GeneratorSource,
    Measures,
    ServedDataset,
    Shard,
    StoredFile,
    check_version,
)
from ..server.catalog.messages.reencoding import encode_groups
from ..server.catalog.object_cache import CacheFullError, ObjectCache
from ..server.catalog.published import PublishedDataset, PublishedVersion
from ..server.catalog.published_shards import OpenGroups, ShardReader
from ..server.catalog.selection import Selection
from ..server.catalog.tensors import encode_tensors
from ..server.metrics import RelayMetrics
from .upstream import UpstreamStorage

_CALL_SECONDS = 60.0
_Item = TypeVar("_Item", pa.RecordBatch, AnyTensor)


class PassedDataset(ServedDataset):
    """A dataset of the upstream that is not cached: each read is one of the upstream."""

    def __init__(self, client: Client, info: DatasetInfo, metrics: RelayMetrics) -> None:
        self._client = client
        self._info = info
        self._metrics = metrics

    @property
    def schema(self) -> pa.Schema:
        """The schema of all batches."""
        return self._info.schema

    @property
    def rows(self) -> int | None:
        """The number of rows; None if the upstream does not know it."""
        return self._info.rows

    @property
    def nbytes(self) -> int | None:
        """The size at the upstream in bytes."""
        return self._info.bytes

    @property
    def version(self) -> str:
        """The version at the upstream when it was last asked."""
        return self._info.version

    @property
    def kind(self) -> str:
        """The type of the data at the upstream."""
        return self._info.kind

    @property
    def app_metadata(self) -> Mapping[str, Any]:
        """The descriptions of the tensors, if it holds some."""
        tensors = self._info.tensors
        if not tensors:
            return {}
        return {"tensor_count": self._info.tensor_count, "tensors": list(map(asdict, tensors))}

    @property
    def location(self) -> str:
        """The URL of the dataset."""
        return f"{self._client.uri}/{self._info.name}"

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards, as the upstream has them."""
        shards = [Shard(endpoint.rows, endpoint.nbytes) for endpoint in self._info.endpoints]
        return shards or [Shard(self.rows, self.nbytes)]

    def open(
        self, request: Request, encoding: Encoding, *, format: str | None = None
    ) -> GeneratorSource:
        """Read what a request selects from the upstream, in a format; see `ServedDataset.open`."""
        part = self._upstream_request(request)
        part = replace(part, compression=None, format=format, current=None)
        try:
            stream = read_request(self._client, part)
        except SplitArrowError as error:
            raise self._explain(error) from None
        if is_tensor_content(stream.schema):
            groups = encode_tensors(self._read(stream, stream.tensors()))
        else:
            sent = Request(request.dataset, compression=request.compression)
            selection = Selection.resolve(sent, encoding, stream.schema)
            batches = ((batch, None) for batch in self._read(stream, stream))
            groups = encode_groups(selection, batches, self.location)
        source = GeneratorSource(groups, blocking=True)
        source.call_on_close(stream.close)
        return source

    def _read(self, stream: DatasetStream, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yield the record batches or tensors of a stream of the upstream, and count them."""
        with stream:
            try:
                for item in items:
                    self._metrics.count_fetched("upstream", item.nbytes)
                    yield item
            except SplitArrowError as error:
                raise self._explain(error) from None

    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Yield what the upstream measures; see `ServedDataset.measure_batches`."""
        part = self._upstream_request(request)
        channel = self._client.channel
        try:
            if request.columns is None:
                for counts in count_rows(channel, part, _CALL_SECONDS).values():
                    yield from counts
                return
            for lengths in list_lengths(channel, part, _CALL_SECONDS).values():
                yield from lengths.chunks
        except SplitArrowError as error:
            raise self._explain(error) from None

    def _upstream_request(self, request: Request) -> Request:
        """Return the request for the upstream, of the version that was described."""
        check_version(request, self.version)
        return replace(request, dataset=self._info.name, version=self.version or None)

    def _explain(self, error: SplitArrowError) -> SplitArrowError:
        """Return the error of the upstream as one of this daemon."""
        if isinstance(error, RemoteError | NotFoundError | InvalidRequestError):
            return error
        self._metrics.count_error()
        return remote_error(
            "UNAVAILABLE", f"the upstream failed: {error.message}", stream=self._info.name
        )


class _RelayedVersion(PublishedVersion):
    """A version whose shards are cached, or pass through if the cache is full."""

    def __init__(
        self,
        manifest: Manifest,
        store: VersionStore,
        reader: ShardReader,
        upstream: UpstreamStorage,
    ) -> None:
        super().__init__(manifest, store, reader)
        self._upstream = upstream

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the version for one reader; see `PublishedVersion.open`."""
        try:
            return super().open(request, encoding)
        except CacheFullError:
            passed, part = self._pass(request)
            return passed.open(part, encoding)

    def open_file(self, request: Request, groups: OpenGroups) -> GeneratorSource:
        """Open the file of a shard; see `PublishedVersion.open_file`."""
        try:
            return super().open_file(request, groups)
        except CacheFullError:
            passed, part = self._pass(request)
            return passed.open(part, Encoding(), format=FILE)

    def open_stored_file(self, request: Request) -> StoredFile | None:
        """Open the file of a shard, if the cache has room; see `PublishedVersion`."""
        try:
            return super().open_stored_file(request)
        except CacheFullError:
            return None

    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Yield a measure of each stored batch; see `PublishedVersion.measure_batches`.

        The upstream measures a shard that is not in the cache: measures are small.
        """
        if not self._reader.has_cached(self._select_shards(request)):
            with suppress(SplitArrowError):
                passed, part = self._pass(request)
                yield from list(passed.measure_batches(part, encoding))
                return
        yield from super().measure_batches(request, encoding)

    def _pass(self, request: Request) -> tuple[PassedDataset, Request]:
        """Return what reads at the upstream, and the request there."""
        client, info = self._upstream.describe(self.manifest.version)
        passed = PassedDataset(client, info, self._upstream.metrics)
        return passed, replace(request, version=info.version)


class RelayedDataset(PublishedDataset):
    """A published dataset of the upstream, whose shards are cached."""

    def __init__(
        self,
        storage: UpstreamStorage,
        cache: ObjectCache,
        check: Callable[[], None],
        find_versions: Callable[[], None],
    ) -> None:
        self._check_upstream = check
        self._find_versions = find_versions
        self.upstream = storage
        """The storage at the upstream."""
        super().__init__(storage, cache)

    @property
    def current_shards(self) -> Sequence[ShardEntry]:
        """The shards of the current version, as far as it is known now."""
        return self._current.manifest.shards

    def _find_version(self, request: Request) -> PublishedVersion:
        self._check_upstream()
        try:
            return super()._find_version(request)
        except RemoteError:
            self._find_versions()  # another relay may know of the version already
            return super()._find_version(request)

    def _make_version(self, manifest: Manifest) -> PublishedVersion:
        return _RelayedVersion(manifest, self._store, self._reader, self.upstream)
