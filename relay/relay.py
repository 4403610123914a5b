"""The relay: it keeps a catalog like that of its upstream."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
from anyio import to_thread

from ..client.dataset.client import Client
from ..client.rpc.info import DatasetInfo
from ..client.tokens import Token
from ..client.uris import is_this_host
from ..errors import (
    ConfigError,
    DatasetError,
    InvalidRequestError,
    NotFoundError,
    SplitArrowError,
    remote_error,
)
from ..protocol.uri import DataUri
from ..publication.atomic_files import TEMPORARY_PREFIX, write_atomic
from ..server.addresses import ANY_INTERFACE
from ..server.auth.access_control import Identify
from ..server.catalog.catalog import Catalog
from ..server.catalog.dataset import ServedDataset
from ..server.catalog.object_cache import open_object_cache
from ..server.config import Settings
from ..server.daemon import Daemon
from ..server.logs import get_logger
from ..server.metrics import RelayMetrics
from .datasets import PassedDataset, RelayedDataset
from .description import RelayDescription, RelayLoopError, describe_above, make_id, read_description
from .identity import UpstreamIdentities
from .peers import Peers
from .prefetch import Prefetcher
from .upstream import UpstreamStorage, UpstreamVersion

Offline = Literal["allow", "refuse"]
"""Whether a relay serves what it has while no upstream can be reached."""
OBJECTS = "objects"
"""The folder of the shards, in the cache."""
_MANIFESTS = "manifests"
_LOCK = "lock"
_CATALOG = "catalog.json"
_PINS = "pins.json"
_MIN_UPDATE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """What a relay serves, and how."""

    upstreams: tuple[DataUri, ...]
    """The control planes of the upstream."""
    cache: Path
    """The folder of the cache."""
    token: Token | None = None
    """The token of the relay at the upstream."""
    offline: Offline = "allow"
    """Whether to serve what the cache has while no upstream can be reached."""
    peers: tuple[DataUri, ...] = ()
    """The control planes of the relays of this level, perhaps with this relay."""
    prefetch_bytes: int = 1 << 30
    """How much of what readers have announced is fetched ahead."""
    rate: int | None = None
    """The largest rate of fetching ahead, in bytes per second. None means no limit."""
    forward_identity: bool = False
    """Whether the upstream is asked about the tokens of readers."""


class Relay:
    """Keeps a catalog like that of the upstream.

    `start` fills the catalog; `run` follows the upstream. Raises `ConfigError` if another relay
    uses the cache, and `SplitArrowError` if the upstream cannot be reached and the cache has
    nothing to serve. All raise `RelayLoopError` if the relay is its own upstream.
    """

    def __init__(self, options: RelayOptions, settings: Settings) -> None:
        self._options = options
        self._seconds = settings.poll_seconds
        self._folder = options.cache
        _check_upstreams(options.upstreams, settings.control)
        self._lock_file = _lock_folder(options.cache)
        self._cache = open_object_cache(settings, checks_files=True, is_shared=False)
        self.metrics = RelayMetrics()
        """The metrics of the relay."""
        self._clients = [Client(uri, options.token, check=False) for uri in options.upstreams]
        self._prefetcher = Prefetcher(self._cache, options.prefetch_bytes, options.rate)
        self._address = ",".join(uri.address for uri in options.upstreams)
        self._known: dict[str, object] = {}
        """What each dataset of the catalog was made of."""
        self._id = make_id(self._lock_file)
        self._above: dict[str, RelayDescription | None] = dict.fromkeys(
            uri.address for uri in options.upstreams
        )
        """The relays that are the upstream, as last described; None for other daemons."""
        self._peers = Peers(options.peers, options.token, self.describe) if options.peers else None
        self.identify: Identify | None = None
        """Asks the upstream about the token of a reader, if that is wanted."""
        if options.forward_identity:
            self.identify = UpstreamIdentities(options.upstreams).identify
        self._listings: dict[str, tuple[bytes, list[DatasetInfo]]] = {}
        """The last versions and datasets of each daemon of the upstream."""
        self._update_lock = threading.Lock()
        self._updated = 0.0
        self._failures: dict[str, str] = {}
        self._pins_lock = threading.Lock()
        self._pins: list[str] = []
        self._pinned: list[tuple[RelayedDataset, str]] = []
        """The datasets and the versions whose shards are pinned."""
        self._log = get_logger("relay")

    def start(self, catalog: Catalog) -> None:
        """Add the datasets of the upstream, or those of the last run while it is offline."""
        self._catalog = catalog
        catalog.cache = self._cache
        self._pins = self._load_names(_PINS)
        try:
            self.update()
        except RelayLoopError:
            raise
        except SplitArrowError:
            if self._options.offline != "allow" or not self._add_stored():
                raise
            self._pin_shards()
        if self._options.prefetch_bytes:
            self._prefetcher.start()

    def attach(self, daemon: Daemon) -> None:
        """Let the daemon describe the relay, and lend threads to readers while others wait."""
        self._cache.report_waiting = daemon.lend_threads
        daemon.context.relay = self

    def describe(self) -> RelayDescription:
        """Return what other relays need to know about this one."""
        return describe_above(self._id, [each for each in self._above.values() if each is not None])

    @property
    def is_offline(self) -> bool:
        """Whether no upstream could be reached when they were last asked."""
        return bool(self.metrics.relay_offline)

    def encode_description(self) -> bytes:
        """Return the description as JSON."""
        return self.describe().encode()

    async def run(self) -> None:
        """Follow the upstream until cancelled."""
        while True:
            await anyio.sleep(self._seconds)
            try:
                await to_thread.run_sync(self.update)
            except RelayLoopError:
                raise
            except SplitArrowError:
                pass  # it has been logged

    def find_versions(self) -> None:
        """Update the catalog now, for a version that a reader knows, unless it is up to date."""
        if time.monotonic() - self._updated >= _MIN_UPDATE_SECONDS:
            with suppress(SplitArrowError):
                self.update()

    def update(self) -> None:
        """Ask the upstream for its datasets, and change the catalog.

        Raises `SplitArrowError` if no daemon answers; the catalog then stays as it is.
        """
        with self._update_lock:
            try:
                self._update()
            finally:
                self._updated = time.monotonic()

    def _update(self) -> None:
        with ThreadPoolExecutor(len(self._clients), "splitarrow-upstream") as threads:
            listings = list(threads.map(self._list_datasets, self._clients))
        for listing in listings:
            if isinstance(listing, RelayLoopError):
                raise listing
        answered = [listing for listing in listings if isinstance(listing, list)]
        if not answered:
            self._set_offline(True)
            raise next(each for each in listings if isinstance(each, SplitArrowError))
        self._set_offline(False)
        found: dict[str, list[tuple[Client, DatasetInfo]]] = {}
        for client, listing in zip(self._clients, listings, strict=True):
            for info in listing if isinstance(listing, list) else ():
                found.setdefault(info.name, []).append((client, info))
        for name, infos in found.items():
            self._update_dataset(name, infos)
        if len(answered) == len(listings):  # otherwise the others may have more
            for name in self._known.keys() - found.keys():
                self._catalog.remove(name)
                del self._known[name]
                self._log.info("dataset removed", dataset=name)
        self._pin_shards()
        self._store_catalog()

    def _list_datasets(self, client: Client) -> list[DatasetInfo] | SplitArrowError:
        try:
            self._check_loop(client)
            listing = self._read_listing(client)
        except SplitArrowError as error:
            self.metrics.count_error()
            self._report(client.uri, "upstream failed", error)
            return error
        self._failures.pop(client.uri, None)
        return listing

    def _read_listing(self, client: Client) -> list[DatasetInfo]:
        """Return the datasets of a daemon. They are described again if a version has changed."""
        versions = client.act("versions")
        known = self._listings.get(client.uri)
        if known is None or known[0] != versions:
            known = self._listings[client.uri] = versions, client.datasets()
        return known[1]

    def _check_loop(self, client: Client) -> None:
        """Raise `RelayLoopError` if a daemon of the upstream relays this relay."""
        above = read_description(client)
        self._above[client.uri] = above
        if above is None:
            return
        if above.id == self._id:
            raise RelayLoopError(f"the upstream {client.uri} is this relay itself")
        if self._id in above.upstreams:
            raise RelayLoopError(
                f"the upstream {client.uri} relays the datasets of this relay: a loop; "
                "name the daemon that has the data"
            )

    def _update_dataset(self, name: str, infos: list[tuple[Client, DatasetInfo]]) -> None:
        """Add a dataset, or follow its version. An error is logged, and the dataset stays."""
        try:
            if infos[0][1].snapshot:
                self._update_published(name, infos)
            else:
                self._update_passed(name, *infos[0])
            self._failures.pop(name, None)
        except SplitArrowError as error:
            self._report(name, "dataset not relayed", error)

    def _update_published(self, name: str, infos: list[tuple[Client, DatasetInfo]]) -> None:
        by_snapshot: dict[str, list[tuple[Client, DatasetInfo]]] = {}
        for client, info in infos:
            by_snapshot.setdefault(info.snapshot, []).append((client, info))
        complete = [
            UpstreamVersion([(client, info.version) for client, info in group])
            for group in by_snapshot.values()
            if sum(info.shards_held or 0 for _, info in group) >= (group[0][1].shards_total or 0)
        ]
        if not complete:
            raise DatasetError("the upstreams do not have all of its shards", stream=name)
        newest = max(complete, key=lambda version: version.number)
        if self._known.get(name) == newest.key:
            return
        dataset = self._catalog.lookup(name) if name in self._known else None
        if isinstance(dataset, RelayedDataset):
            dataset.upstream.set_current(newest)
            dataset.refresh()
        else:
            storage = self._open_storage(name)
            storage.set_current(newest)
            self._put(name, self._make_relayed(storage))
        self._known[name] = newest.key

    def _update_passed(self, name: str, client: Client, info: DatasetInfo) -> None:
        if self._known.get(name) == info.version and info.version:
            return
        self._put(name, PassedDataset(client, client.info(name), self.metrics))
        self._known[name] = info.version

    def _put(self, name: str, dataset: ServedDataset) -> None:
        self._catalog.replace(name, dataset)
        self._log.info("dataset relayed", dataset=name, kind=dataset.kind)

    def _open_storage(self, name: str) -> UpstreamStorage:
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        folder = self._folder / _MANIFESTS / digest
        return UpstreamStorage(name, self._address, folder, self.metrics, self._peers)

    def _make_relayed(self, storage: UpstreamStorage) -> RelayedDataset:
        return RelayedDataset(storage, self._cache, self._check, self.find_versions)

    def _check(self) -> None:
        """Raise `RemoteError` if the upstream is offline, and nothing may be served then."""
        if self.is_offline and self._options.offline == "refuse":
            raise remote_error("UNAVAILABLE", f"{self._address} cannot be reached")

    def _set_offline(self, offline: bool) -> None:
        if offline != self.is_offline:
            self.metrics.relay_offline = int(offline)
            event = "upstream offline" if offline else "upstream online"
            self._log.warning(event, upstream=self._address)

    def _report(self, key: str, event: str, error: SplitArrowError) -> None:
        """Log an error once, until it is another one."""
        if self._failures.get(key) != error.message:
            self._failures[key] = error.message
            self._log.warning(event, subject=key, reason=error.message)

    def _store_catalog(self) -> None:
        """Remember the names of the cached datasets, for a start while the upstream is offline."""
        names = [
            name for name in self._known if isinstance(self._catalog.lookup(name), RelayedDataset)
        ]
        try:
            self._store_names(_CATALOG, sorted(names))
        except DatasetError as error:
            self._report(_CATALOG, "catalog not stored", error)
        else:
            self._failures.pop(_CATALOG, None)

    def _add_stored(self) -> bool:
        """Add the datasets of the last run, and return whether there are any."""
        for name in self._load_names(_CATALOG):
            with suppress(SplitArrowError):
                self._put(name, self._make_relayed(self._open_storage(name)))
                self._known[name] = None
        return bool(self._known)

    def _store_names(self, file: str, names: list[str]) -> None:
        """Write names to a file of the cache, if they have changed."""
        path = self._folder / file
        text = json.dumps(names).encode()
        try:
            if not path.exists() or path.read_bytes() != text:
                write_atomic(path, text)
        except OSError as error:
            raise DatasetError(f"cannot write {path}: {error.strerror}") from None

    def _load_names(self, file: str) -> list[str]:
        """Return the names in a file of the cache; an empty list if there is no such file."""
        path = self._folder / file
        try:
            return [str(name) for name in json.loads(path.read_bytes())]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as error:
            self._log.warning("file of the cache not read", path=str(path), reason=str(error))
            return []

    def pin(self, names: Sequence[str], *, is_pinned: bool) -> dict[str, Any]:
        """Pin datasets, or unpin them; see `RelayService.pin`."""
        for name in names if is_pinned else ():
            if not isinstance(self._catalog.lookup(name), RelayedDataset):
                raise InvalidRequestError(
                    f"{name!r} is not a published dataset, which a relay caches", stream=name
                )
        with self._pins_lock:
            kept = [name for name in self._pins if is_pinned or name not in names]
            pins = list(dict.fromkeys([*kept, *(names if is_pinned else ())]))
            self._store_names(_PINS, pins)
            self._pins = pins
        self._pin_shards()
        sizes = {name: dataset.nbytes for name, dataset in self._list_pinned()}
        return {
            "pins": {name: sizes.get(name) for name in self._pins},
            "bytes": self.metrics.relay_pinned_bytes,
            "max_bytes": self._cache.max_pinned_bytes,
        }

    def _list_pinned(self) -> list[tuple[str, RelayedDataset]]:
        """Return the pinned datasets that the upstream has, with their names."""
        found: list[tuple[str, RelayedDataset]] = []
        for name in self._pins:
            with suppress(NotFoundError):
                dataset = self._catalog.lookup(name)
                if isinstance(dataset, RelayedDataset):
                    found.append((name, dataset))
        return found

    def _pin_shards(self) -> None:
        """Pin the shards of the current versions of the pinned datasets."""
        with self._pins_lock:
            datasets = [dataset for _, dataset in self._list_pinned()]
            pinned = [(dataset, dataset.version) for dataset in datasets]
            if pinned == self._pinned:
                return
            self._pinned = pinned
            nbytes = self._cache.pin(
                (dataset.upstream, shard)
                for dataset in datasets
                for shard in dataset.current_shards
            )
            self.metrics.relay_pinned_bytes = nbytes
        if nbytes > self._cache.max_pinned_bytes:
            self._log.warning(
                "pins exceed the cache", bytes=nbytes, max_bytes=self._cache.max_pinned_bytes
            )

    def close(self) -> None:
        """Close the connections to the upstream, and leave the cache to other relays."""
        self._prefetcher.stop()
        for client in self._clients:
            client.close()
        if self._peers is not None:
            self._peers.close()
        self._prefetcher.join()
        os.close(self._lock_file)


def _check_upstreams(upstreams: Sequence[DataUri], control: str | None) -> None:
    """Raise `RelayLoopError` if an upstream has the address that the relay will listen at."""
    if control is None:
        return
    own = DataUri.parse(control)
    for uri in upstreams:
        is_host = uri.host == own.host or (own.host in ANY_INTERFACE and is_this_host(uri.host))
        if own.port and uri.port == own.port and is_host:
            raise RelayLoopError(f"the upstream {uri.address} is this relay itself")


def _lock_folder(folder: Path) -> int:
    """Create a folder for this user, and lock it; return the descriptor that holds the lock."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot use the cache {folder}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(f"another relay uses the cache {folder}") from None
    for path in (folder / OBJECTS).glob(f"{TEMPORARY_PREFIX}*"):
        path.unlink(missing_ok=True)  # of a relay that was killed
    return descriptor
