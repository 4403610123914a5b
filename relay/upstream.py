"""The published datasets of the upstream: their manifests, and the files of their shards."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..client.dataset.client import Client
from ..client.rpc.info import DatasetInfo, read_manifest
from ..errors import DatasetError, SplitArrowError
from ..protocol.request import Request
from ..publication.atomic_files import write_atomic
from ..publication.layout import VERSIONS, format_manifest_name, parse_manifest_name
from ..publication.manifest import Manifest, ShardEntry, decode_manifest, encode_manifest
from ..publication.storage import Progress, StoredObject
from ..server.catalog.dataset import parse_version_number
from ..server.catalog.published import name_version
from ..server.metrics import RelayMetrics
from .peers import Peers, copy_shard

_MAX_KEPT_VERSIONS = 8


class UpstreamVersion:
    """A version of a published dataset, and the daemons that have its shards."""

    def __init__(self, holders: Sequence[tuple[Client, str]]) -> None:
        self.holders = holders
        """The daemons, and the version as each of them names it."""

    @property
    def number(self) -> int:
        """The number of the version."""
        return max(parse_version_number(version) or 0 for _, version in self.holders)

    @property
    def key(self) -> str:
        """What identifies the version at all daemons together."""
        return ",".join(sorted({version for _, version in self.holders}))


class _Place(NamedTuple):
    """Where a shard is."""

    number: int
    """The number of the version at the upstream."""
    version: str
    """The version, as relays name it."""
    shard: ShardEntry


class UpstreamStorage:
    """The storage of one published dataset of the upstream. It can be read only; see `Storage`."""

    folder = None
    """The local folder: None, as for an object store."""

    def __init__(
        self,
        name: str,
        address: str,
        folder: Path,
        metrics: RelayMetrics,
        peers: Peers | None = None,
    ) -> None:
        self.location = f"{address}/{name}"
        """The URL of the dataset."""
        self.metrics = metrics
        """The metrics of the relay."""
        self._name = name
        self._folder = folder
        self._peers = peers
        self._lock = threading.Lock()
        self._current: UpstreamVersion | None = None
        self._versions: dict[int, UpstreamVersion] = {}
        self._places: dict[str, _Place] = {}
        """Where each shard is, by its path."""

    def set_current(self, version: UpstreamVersion) -> None:
        """Name the version that is current at the upstream."""
        with self._lock:
            self._current = version
            self._versions[version.number] = version
            for number in sorted(self._versions)[:-_MAX_KEPT_VERSIONS]:
                del self._versions[number]

    def list_objects(self, folder: str) -> list[StoredObject]:
        """Return the manifest of the current version."""
        if folder != VERSIONS:
            return []
        with self._lock:
            current = self._current
        if current is not None:
            return [StoredObject(format_manifest_name(current.number), 0, current.key)]
        stored = sorted(self._folder.glob("*.json"))  # of an earlier run
        return [StoredObject(f"{VERSIONS}/{stored[-1].name}", 0)] if stored else []

    def read(self, name: str) -> bytes | None:
        """Return a manifest; None if the relay does not know the version."""
        number = parse_manifest_name(name)
        if number is None:
            return None
        with self._lock:
            version = self._versions.get(number)
        path = self._folder / Path(name).name
        data = None
        if version is None:
            with suppress(FileNotFoundError):
                data = path.read_bytes()
        else:
            data = encode_manifest(self._fetch_manifest(version))
            with suppress(OSError):  # only a start while the upstream is offline needs the file
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomic(path, data)
                self._remove_manifests(number)
        if data is not None:
            manifest = decode_manifest(data, self.location)
            text = name_version(manifest)
            stored = {int(path.stem) for path in self._folder.glob("[0-9]*.json")}
            with self._lock:
                known = {number, *stored, *self._versions}
                self._places = {
                    **{key: each for key, each in self._places.items() if each.number in known},
                    **{shard.path: _Place(number, text, shard) for shard in manifest.shards},
                }
        return data

    def _remove_manifests(self, number: int) -> None:
        """Remove manifests of old versions, and those of a dataset that was published anew."""
        with self._lock:
            is_current = self._current is not None and self._current.number == number
        stored = sorted(self._folder.glob("[0-9]*.json"))
        newer = [path for path in stored if is_current and path.stem > f"{number:08d}"]
        for path in {*newer, *stored[:-_MAX_KEPT_VERSIONS]}:
            path.unlink(missing_ok=True)

    def _fetch_manifest(self, version: UpstreamVersion) -> Manifest:
        """Return the manifest with the shards of all daemons that have some."""
        found: list[Manifest] = []
        failure: SplitArrowError | None = None
        for client, name in version.holders:
            try:
                data = read_manifest(client.channel, Request(self._name, version=name))
                found.append(decode_manifest(data, self.location))
            except SplitArrowError as error:
                self.metrics.count_error()
                failure = error
        shards = {shard.ordinal: shard for each in found for shard in each.shards}
        if not found or len(shards) < (found[0].shards_total or len(shards)):
            raise _as_dataset_error(self.location, failure)
        if len(found) == 1:
            return found[0]
        return replace(found[0], shards=tuple(shards[ordinal] for ordinal in sorted(shards)))

    def find(self, name: str) -> StoredObject | None:
        """Return the manifest of a version that the relay knows."""
        with self._lock:
            known = parse_manifest_name(name) in self._versions
        if known or (self._folder / Path(name).name).exists():
            return StoredObject(name, 0)
        return None

    def fetch(self, name: str, target: Path, progress: Progress | None = None) -> None:
        """Fetch the file of a shard from a peer, or a daemon that has it, or parts from several."""
        with self._lock:
            place = self._places.get(name)
            if place is None:
                raise _as_dataset_error(self.location, None)
            version = self._versions.get(place.number)
        failure: SplitArrowError | None = None
        with target.open("xb", buffering=0) as file:
            if self._peers is not None and self._peers.copy_shard(
                self._name, place.version, place.shard, file, progress
            ):
                self.metrics.count_fetched("peer", place.shard.nbytes)
                return
            for client, text in () if version is None else version.holders:
                begin = file.tell()
                try:
                    copy_shard(client, self._name, text, place.shard.ordinal, file, progress)
                    return
                except SplitArrowError as error:
                    self.metrics.count_error()
                    failure = error
                finally:
                    self.metrics.count_fetched("upstream", file.tell() - begin)
        raise _as_dataset_error(self.location, failure)

    def describe(self, number: int) -> tuple[Client, DatasetInfo]:
        """Return a daemon that has all shards of a version, and the version there."""
        with self._lock:
            version = self._versions.get(number)
        failure: SplitArrowError | None = None
        for client, text in () if version is None else version.holders:
            try:
                info = client.describe(Request(self._name, version=text))
            except SplitArrowError as error:
                self.metrics.count_error()
                failure = error
                continue
            if info.shards_held in (None, info.shards_total):
                return client, info
        raise _as_dataset_error(self.location, failure)

    def create(self, name: str, data: bytes) -> bool:
        """Refuse: the upstream alone changes its datasets."""
        raise self._refuse()

    def put(self, name: str, source: Path) -> None:
        """Refuse; see `create`."""
        raise self._refuse()

    def move(self, name: str, target: str) -> None:
        """Refuse; see `create`."""
        raise self._refuse()

    def flush(self, folders: Iterable[str]) -> None:
        """Do nothing."""

    def delete(self, names: Iterable[str]) -> None:
        """Refuse; see `create`."""
        raise self._refuse()

    def _refuse(self) -> DatasetError:
        return DatasetError(f"{self.location} is relayed; change it at the upstream")


def _as_dataset_error(location: str, error: SplitArrowError | None) -> DatasetError:
    reason = "no upstream has it" if error is None else error.message
    return DatasetError(f"cannot read {location}: {reason}")
