"""The peers of a relay: the relays of its level, which it asks for shards before the upstream.

Rendezvous hashing ranks the relays for each shard by its SHA-256. A relay asks only those that rank
before itself, and the first one asks the upstream, which so sends each shard about once. Ranks do
not depend on the lists of peers: with different lists too, no two relays wait for each other.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..client.cluster.publication import choose_nodes
from ..client.dataset.client import Client
from ..client.failures import FailureMemory
from ..client.tokens import Token
from ..errors import ConnectError, DatasetError, RemoteError, SplitArrowError
from ..protocol.request import FILE, MAX_COUNT
from ..protocol.uri import DataUri
from ..publication.manifest import ShardEntry
from ..publication.shard_files import hash_file
from ..publication.storage import Progress, write_all
from ..server.logs import get_logger
from .description import RelayDescription, read_description

CONNECT_SECONDS = 10.0
"""The longest wait for the first response of a peer, in seconds."""
_READ_OPTIONS = {
    "connect_timeout": CONNECT_SECONDS,
    "location_timeout": CONNECT_SECONDS,
    "stall_timeout": 10.0,
    "resume_attempts": 0,
}
_MAX_ATTEMPTS = 2
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 30.0
_MAX_THREADS = 16
_PREFETCH_BYTES = 16 << 20
_WITHOUT_VERSION = ("NOT_FOUND", "FAILED_PRECONDITION", "PERMISSION_DENIED")
"""The codes of a peer that does not have the version of a dataset, or not for this relay."""


def copy_shard(
    client: Client,
    name: str,
    version: str,
    ordinal: int,
    file: io.FileIO,
    progress: Progress | None,
    **options: Any,
) -> None:
    """Copy the file of a shard, from where a local file ends. The options are those of a read."""
    read = client.read(
        name,
        format=FILE,
        shards=[ordinal],
        version=version,
        rows=(file.tell(), MAX_COUNT),
        prefetch_bytes=_PREFETCH_BYTES,
        **options,
    )
    with read as stream:
        for batch in stream:
            values: Any = batch.column(0)
            data = memoryview(values.buffers()[1])[values.offset :][: len(values)]
            write_all(file, data)
            if progress is not None:
                progress(file.tell())


@dataclass(slots=True, eq=False)
class _Peer:
    client: Client
    description: RelayDescription | None = None


class Peers:
    """The relays of one level. Safe to use from several threads.

    The list may contain the relay itself, which `describe` describes.
    """

    def __init__(
        self, uris: Sequence[DataUri], token: Token | None, describe: Callable[[], RelayDescription]
    ) -> None:
        self._describe = describe
        self._peers = [
            _Peer(
                Client(
                    uri,
                    token,
                    connect_timeout=CONNECT_SECONDS,
                    timeout=CONNECT_SECONDS,
                    check=False,
                )
            )
            for uri in uris
        ]
        self._failures = FailureMemory()
        self._lock = threading.Lock()
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._resumes = 0.0
        self._log = get_logger("relay")

    def copy_shard(
        self,
        name: str,
        version: str,
        shard: ShardEntry,
        file: io.FileIO,
        progress: Progress | None = None,
    ) -> bool:
        """Copy the file of a shard from a peer, and return whether it is complete.

        Otherwise the file is empty. Readers get nothing of it before its checksum was right.
        """
        for peer in self._choose(shard.sha256, f"{name} {version}"):
            address = peer.client.uri
            try:
                if not self._confirm(peer):
                    continue
                copy_shard(peer.client, name, version, shard.ordinal, file, None, **_READ_OPTIONS)
                if hash_file(Path(str(file.name))) != shard.sha256:
                    raise DatasetError(f"the peer {address} sent a damaged shard of {name}")
            except SplitArrowError as error:
                self._report(peer, f"{name} {version}", error)
                file.seek(0)
                file.truncate()
                continue
            self._failures.discard(address)
            if progress is not None:
                progress(shard.nbytes)
            return True
        return False

    def _choose(self, sha256: str, version: str) -> list[_Peer]:
        """Return the peers to ask for a shard, best first: those that rank before this relay."""
        self._find_peers()
        own = self._describe()
        by_id: dict[str, _Peer] = {}
        for peer in self._peers:
            known = peer.description
            if known is not None and known.id != own.id and known.level == own.level:
                by_id[known.id] = peer
        ranked = choose_nodes(sha256, [own.id, *by_id], 1 + len(by_id))
        before = [by_id[name] for name in ranked[: ranked.index(own.id)]]
        usable = (
            peer
            for peer in before
            if peer.client.uri not in self._failures
            and f"{peer.client.uri} {version}" not in self._failures
        )
        return list(usable)[:_MAX_ATTEMPTS]

    def _confirm(self, peer: _Peer) -> bool:
        """Return whether a peer responds, and is still the relay that was chosen."""
        known = peer.description
        peer.description = read_description(peer.client)
        return peer.description == known

    def _find_peers(self) -> None:
        """Ask peers that have not responded yet, or had another level, after a growing pause."""
        level = self._describe().level
        with self._lock:
            unknown = [
                peer
                for peer in self._peers
                if peer.description is None or peer.description.level != level
            ]
            if not unknown or time.monotonic() < self._resumes:
                return
            with ThreadPoolExecutor(min(len(unknown), _MAX_THREADS), "splitarrow-peer") as threads:
                list(threads.map(self._find_peer, unknown))
            self._resumes = time.monotonic() + self._pause_seconds
            self._pause_seconds = min(2 * self._pause_seconds, _MAX_PAUSE_SECONDS)

    def _find_peer(self, peer: _Peer) -> None:
        with suppress(SplitArrowError):  # it may start later
            peer.description = read_description(peer.client)
            if peer.description is None:
                self._log.warning("peer is not a relay", peer=peer.client.uri)

    def _report(self, peer: _Peer, version: str, error: SplitArrowError) -> None:
        """Leave out a peer that has failed, or for a version that it does not have."""
        address = peer.client.uri
        lacks = isinstance(error, RemoteError) and error.code in _WITHOUT_VERSION
        self._failures.add(f"{address} {version}" if lacks else address)
        if isinstance(error, ConnectError):
            peer.description = None  # another relay may get the address
        self._log.warning("peer failed", peer=address, reason=error.message)

    def close(self) -> None:
        """Close the connections."""
        for peer in self._peers:
            peer.client.close()
