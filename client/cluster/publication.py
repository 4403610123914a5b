"""Publishing one dataset to several daemons.

Rendezvous hashing assigns the shards to daemons without a table.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, cast

import pyarrow as pa

from ...errors import (
    DatasetError,
    NotFoundError,
    SplitArrowError,
    TransportError,
    UnavailableError,
    UsageError,
)
from ...protocol.uri import DataUri
from ...transport.tls_options import TlsOptions
from ..dataset.client import Client
from ..dataset.requests import check_name
from ..rpc.errors import restate_error
from ..rpc.info import DatasetInfo, PublishResult, ShardUploadResult
from ..rpc.upload import MODES, open_shard
from ..tokens import Token, TokenFile, parse_token
from ..uris import parse_control_uris


def choose_nodes(key: str, nodes: Sequence[str], replicas: int = 1) -> list[str]:
    """Return the nodes for a key, in order of preference.

    Raises `UsageError` if there are fewer nodes than replicas, or two nodes have the same name.

    Examples
    --------
    >>> choose_nodes("trips/7", ["a", "b", "c"], 2) == choose_nodes("trips/7", ["c", "a", "b"], 2)
    True
    """
    if len(set(nodes)) != len(nodes):
        raise UsageError(f"the daemons {', '.join(nodes)} contain one twice; name each one once")
    if not 1 <= replicas <= len(nodes):
        raise UsageError(
            f"{replicas} replicas on {len(nodes)} daemons are not possible; "
            f"expected 1 to {len(nodes)}"
        )
    ranked = sorted(nodes, key=lambda node: (_score(key, node), node), reverse=True)
    return ranked[:replicas]


def assign_shards(
    name: str, shards: int, nodes: Sequence[str], replicas: int = 1
) -> list[list[str]]:
    """Return the nodes for each shard of a dataset, by ordinal.

    Parameters
    ----------
    name : str
        The dataset.
    shards : int
        The number of shards.
    nodes, replicas
        See `choose_nodes`.

    Raises
    ------
    UsageError
        If there are fewer nodes than replicas, or two nodes have the same name.
    """
    return [choose_nodes(f"{name}/{ordinal}", nodes, replicas) for ordinal in range(shards)]


def _score(key: str, node: str) -> int:
    digest = blake2b(f"{node}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


ShardSource = Any
"""The path of an Arrow IPC file, or a function that returns a path, Arrow data, or a context
manager of one of them."""


@contextmanager
def open_source(source: ShardSource) -> Generator[Any]:
    """Yield the path or the Arrow data of a shard while the context lasts."""
    found: Any = source() if callable(source) else source
    # Paths and pyarrow's readers are also context managers, but are used directly.
    if isinstance(found, (str, os.PathLike)) or hasattr(found, "__arrow_c_stream__"):
        yield found
    elif isinstance(found, AbstractContextManager):
        with cast("AbstractContextManager[Any]", found) as data:
            yield data
    else:
        yield found


def read_source_schema(source: ShardSource) -> pa.Schema:
    """Return the schema of a shard."""
    with open_source(source) as data, open_shard(data) as shard:
        return shard.schema


def hash_files(name: str, shards: Sequence[ShardSource]) -> str:
    """Return the name of a job that depends on the dataset and the contents of the files only."""
    digest = hashlib.sha256(name.encode())
    for shard in shards:
        if not isinstance(shard, (str, os.PathLike)):
            raise UsageError("only files have a default job for mode='append'; pass job=")
        path = os.fspath(cast("str | os.PathLike[str]", shard))
        try:
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise DatasetError(f"cannot read the shard {path}: {error.strerror}") from None
    return f"files-{digest.hexdigest()[:32]}"


_TRANSIENT = (TransportError, UnavailableError)
_MAX_THREADS = 16

ShardProgress = Callable[[ShardUploadResult], None]
"""A callback that receives each copy of a shard after its upload."""


@dataclass(frozen=True, slots=True)
class ClusterPublishResult:
    """The result of a publication at several daemons."""

    job: str
    """The name of the publication."""
    snapshot: str
    """The identifier that the publication has at every daemon."""
    shards: int
    """The number of shards, without replicas."""
    rows: int
    """The number of rows, without replicas."""
    daemons: Mapping[str, PublishResult]
    """The result at each daemon, by its address."""


def publish_shards(
    name: str,
    shards: Sequence[ShardSource],
    uris: str | DataUri | Sequence[str | DataUri],
    *,
    replicas: int = 1,
    job: str | None = None,
    snapshot: str | None = None,
    mode: str = "overwrite",
    schema: pa.Schema | None = None,
    properties: Mapping[str, str] | None = None,
    token: Token | None = None,
    token_file: TokenFile = None,
    tls: TlsOptions | None = None,
    connect_timeout: float = 10.0,
    timeout: float = 120.0,
    parallel: int = 4,
    attempts: int = 3,
    progress: ShardProgress | None = None,
) -> ClusterPublishResult:
    """Publish shards to several daemons as one dataset with one snapshot.

    Rendezvous hashing assigns each shard to `replicas` daemons. No daemon commits before all
    shards are uploaded. Repeat a call with the same job after a failure: the daemons that
    have committed keep their version, and no row is published twice.

    Parameters
    ----------
    name : str
        The dataset.
    shards : sequence
        The shards, in order. Each is the path of an Arrow IPC file, or a function without
        arguments that returns a path, Arrow data, or a context manager of one of them. The
        function is called for each copy that is uploaded.
    uris : str, DataUri, or a sequence of them
        The control planes of the daemons, which must accept uploads.
    replicas : int
        The number of daemons that get each shard.
    job : str, optional
        The name of this publication: letters, digits and ``. _ -``. Two calls with the same job
        are one publication. The default is a random name. With ``mode="append"``, the default
        depends on the contents of the files, so that the same files are not appended twice.
    snapshot : str, optional
        The identifier of the publication, equal at all daemons. The default is the job.
    mode : {"overwrite", "append"}
        Whether to replace the shards of the previous version or to keep them.
    schema : pyarrow.Schema, optional
        The schema of the dataset. The default is that of the first shard.
    properties : mapping of str to str, optional
        Further entries for the manifests.
    token, token_file
        The bearer token, for all daemons; see `splitarrow.connect`.
    tls : TlsOptions, optional
        Certificates for TLS. `None` reads the ``SPLITARROW_TLS_*`` variables.
    connect_timeout : float
        The time limit to connect to a daemon, in seconds.
    timeout : float
        The time limit of a commit, in seconds.
    parallel : int
        The number of shards to upload at a time.
    attempts : int
        The number of attempts to upload a copy, or to commit, if connections fail.
    progress : callable, optional
        Receives each copy of a shard after its upload, on the calling thread.

    Returns
    -------
    ClusterPublishResult
        The result at each daemon.

    Raises
    ------
    UsageError
        If an argument is invalid.
    ConnectError
        If a daemon does not respond. Nothing was uploaded then.
    SplitArrowError
        If a shard cannot be read, or a daemon refuses. If a commit fails, the error names the
        daemons that have committed.
    """
    check_name(name)
    if mode not in MODES:
        raise UsageError(f"mode is {mode!r}; expected {' or '.join(MODES)}")
    for option, value in (("parallel", parallel), ("attempts", attempts)):
        if value < 1:
            raise UsageError(f"{option} is {value}; expected 1 or more")
    nodes, source = (
        [uri.address for uri in parse_control_uris(uris)],
        parse_token(token, token_file),
    )
    job = job or (hash_files(name, shards) if mode == "append" else uuid.uuid4().hex)
    snapshot = snapshot or job
    with ExitStack() as stack:
        clients = {
            node: stack.enter_context(
                Client(node, source, tls=tls, connect_timeout=connect_timeout, timeout=timeout)
            )
            for node in nodes
        }
        publication = _Publication(name, job, snapshot, mode, clients, attempts)
        previous = publication.describe_previous()
        copies = publication.assign_copies(shards, replicas)
        if mode == "append":
            publication.check_append(previous, len(shards))
        uploads = publication.upload(copies, min(parallel, _MAX_THREADS), progress)
        publication.check_copies(uploads)
        ordinals = publication.list_ordinals(copies)
        if shards and schema is None:
            schema = read_source_schema(shards[0])
        daemons = publication.commit(ordinals, len(shards), schema, properties)
    rows = {upload.ordinal: upload.rows for upload in uploads}
    return ClusterPublishResult(job, snapshot, len(shards), sum(rows.values()), daemons)


class _Copy(NamedTuple):
    """A copy of a shard that a daemon is to hold."""

    node: str
    ordinal: int
    source: ShardSource


@dataclass(frozen=True, slots=True)
class _Publication:
    """The steps of one publication."""

    name: str
    job: str
    snapshot: str
    mode: str
    clients: Mapping[str, Client]
    """The clients of all daemons, by their addresses."""
    attempts: int

    def describe_previous(self) -> dict[str, DatasetInfo | None]:
        """Return the dataset as each daemon has it before the publication."""

        def describe(client: Client) -> DatasetInfo | None:
            try:
                return client.info(self.name)
            except NotFoundError:
                return None

        return {node: describe(client) for node, client in self.clients.items()}

    def check_append(self, previous: Mapping[str, DatasetInfo | None], added: int) -> None:
        """Refuse to append if the daemons would give the new shards different ordinals."""
        bases: dict[str, int] = {}
        for node, info in previous.items():
            if info is not None and info.shards_total is None:
                raise DatasetError(
                    f"{node} has a dataset {self.name!r} that is not published, so nothing can be "
                    "appended to it",
                    stream=self.name,
                )
            total = 0 if info is None else info.shards_total or 0
            # A daemon may have committed already, in an earlier call that failed elsewhere.
            committed = info is not None and info.snapshot == self.snapshot
            bases[node] = total - (added if committed else 0)
        if len(set(bases.values())) > 1:
            found = ", ".join(f"{count} shards at {node}" for node, count in bases.items())
            raise DatasetError(
                f"cannot append to {self.name!r}: the daemons have different versions of it "
                f"({found}); publish the whole dataset again with mode='overwrite'",
                stream=self.name,
            )

    def assign_copies(self, shards: Sequence[ShardSource], replicas: int) -> list[_Copy]:
        """Return the copies of all shards, each with the daemon that is to hold it."""
        # Without the job in the key, the first shard of every append would have the same daemon.
        key = f"{self.name}/{self.job}" if self.mode == "append" else self.name
        assignment = assign_shards(key, len(shards), list(self.clients), replicas)
        return [
            _Copy(node, ordinal, shards[ordinal])
            for ordinal, nodes in enumerate(assignment)
            for node in nodes
        ]

    def upload(
        self, copies: Sequence[_Copy], threads: int, progress: ShardProgress | None
    ) -> list[ShardUploadResult]:
        """Upload all copies."""
        uploads: list[ShardUploadResult] = []
        with ThreadPoolExecutor(threads, thread_name_prefix="splitarrow-publish") as pool:
            futures = [pool.submit(self._upload_copy, copy) for copy in copies]
            try:
                for future in as_completed(futures):
                    uploads.append(future.result())
                    if progress is not None:
                        progress(uploads[-1])
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
        return uploads

    def _upload_copy(self, copy: _Copy) -> ShardUploadResult:
        """Upload one copy; try again if the connection fails."""
        client = self.clients[copy.node]
        attempt = 0
        while True:
            attempt += 1
            try:
                with open_source(copy.source) as data:
                    return client.put_shard(self.name, data, job=self.job, ordinal=copy.ordinal)
            except _TRANSIENT as error:
                if attempt == self.attempts:
                    message = (
                        f"cannot upload shard {copy.ordinal} of {self.name!r} to {copy.node}: "
                        f"{error.message}"
                    )
                    raise restate_error(error, message, error.stream) from None

    def check_copies(self, uploads: Sequence[ShardUploadResult]) -> None:
        """Refuse copies that differ: a read could not continue at another daemon."""
        checksums: dict[int, str] = {}
        for upload in uploads:
            if checksums.setdefault(upload.ordinal, upload.sha256) != upload.sha256:
                raise DatasetError(
                    f"the daemons store different files for shard {upload.ordinal} of "
                    f"{self.name!r}; they need the same version of pyarrow, and the shard must "
                    "have the same rows each time it is read",
                    stream=self.name,
                )

    def list_ordinals(self, copies: Sequence[_Copy]) -> dict[str, list[int]]:
        """Return the ordinals that each daemon holds.

        A daemon without a shard commits the version, too, so that it gives appended shards the
        ordinals that the others give them.
        """
        ordinals: dict[str, list[int]] = {node: [] for node in self.clients}
        for copy in copies:
            ordinals[copy.node].append(copy.ordinal)
        return ordinals

    def commit(
        self,
        ordinals: Mapping[str, Sequence[int]],
        shards_total: int,
        schema: pa.Schema | None,
        properties: Mapping[str, str] | None,
    ) -> dict[str, PublishResult]:
        """Commit the version at the daemons. An error names those that have committed."""

        def commit_at(node: str) -> PublishResult | SplitArrowError:
            attempt = 0
            while True:
                attempt += 1
                try:
                    return self.clients[node].publish(
                        self.name,
                        job=self.job,
                        ordinals=ordinals[node],
                        shards_total=shards_total,
                        snapshot=self.snapshot,
                        mode=self.mode,
                        schema=schema,
                        properties=properties,
                    )
                except SplitArrowError as error:
                    if attempt == self.attempts or not isinstance(error, _TRANSIENT):
                        return error

        with ThreadPoolExecutor(min(len(ordinals), _MAX_THREADS)) as pool:
            results = dict(zip(ordinals, pool.map(commit_at, ordinals), strict=True))
        committed: dict[str, PublishResult] = {}
        failed: dict[str, SplitArrowError] = {}
        for node, result in results.items():
            if isinstance(result, PublishResult):
                committed[node] = result
            else:
                failed[node] = result
        if failed:
            reasons = "; ".join(f"{node}: {error}" for node, error in failed.items())
            raise DatasetError(
                f"{self.name!r} was not published at every daemon: {reasons}; committed at "
                f"{', '.join(committed) or 'none'}; publish again with job={self.job!r}",
                stream=self.name,
            )
        return committed
