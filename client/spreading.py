"""Spreading the shards of one dataset over several daemons, and committing them there."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from ..errors import (
    DatasetError,
    NotFoundError,
    SplitArrowError,
    TransportError,
    UnavailableError,
    UsageError,
)
from ..protocol.uri import DataUri
from ..transport.certificates import TlsOptions
from .calls import control_uris
from .control import Client
from .described import DatasetInfo, Published, StoredShard
from .placement import spread as placed
from .publishing import MODES, shard_data
from .reading import checked_name

_PASSING = (TransportError, UnavailableError)
_MOST_AT_ONCE = 16

ShardSource = Any
"""The path of an Arrow IPC file, or a function that returns Arrow data, or a context of either."""
ShardProgress = Callable[[StoredShard], None]
"""Is told of each copy of a shard that is stored."""


@dataclass(frozen=True, slots=True)
class Spread:
    """What became of a publication."""

    job: str
    """Its name."""
    snapshot: str
    """What is the same at every daemon."""
    shards: int
    """How many shards were published, without counting replicas."""
    rows: int
    """How many rows were published, without counting replicas."""
    daemons: Mapping[str, Published]
    """What each daemon has, by its address."""


def spread(
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
    token: str | None = None,
    tls: TlsOptions | None = None,
    connect_timeout: float = 10.0,
    timeout: float = 120.0,
    parallel: int = 4,
    attempts: int = 3,
    progress: ShardProgress | None = None,
) -> Spread:
    """Publish shards to several daemons: each shard to some of them, one snapshot at all.

    All shards are uploaded before the first daemon commits. It may be done again with the same
    job, whether it failed or not: what was committed is kept, and no row is there twice.

    Parameters
    ----------
    name : str
        The dataset.
    shards : sequence
        For each shard the path of an Arrow IPC file; or a function without arguments that
        returns that, Arrow data, or a context manager of one of them. It is called for each
        copy that is sent.
    uris : str, or sequence of str
        The control planes of the daemons, which have to be writable.
    replicas : int
        How many daemons get each shard.
    job : str, optional
        What this publication is called: letters, digits and ``. _ -``. Two publications of
        one job are one. By default every call is a job of its own; one that appends is called
        after the contents of its files, so that nothing is appended twice.
    snapshot : str, optional
        What readers know it by; by default the job.
    mode : {"overwrite", "append"}
        Whether the dataset is to have these shards only, or those from before as well.
    schema : pyarrow.Schema, optional
        The schema of the dataset; needed where there are no shards.
    properties : mapping of str to str, optional
        What else to keep in the manifests.
    token : str, optional
        What tells every daemon who calls.
    tls : TlsOptions, optional
        What to trust and to show.
    connect_timeout, timeout : float
        The longest time to connect, and that a commit may take, in seconds.
    parallel : int
        How many shards are sent at a time.
    attempts : int
        How often to send a copy whose connection breaks.
    progress : callable, optional
        Is told of each copy that is stored, on the calling thread.

    Returns
    -------
    Spread
        What each daemon has.

    Raises
    ------
    UsageError
        If an argument is wrong.
    ConnectError
        If a daemon does not answer; nothing was sent then.
    SplitArrowError
        If a shard cannot be read, or a daemon refuses. Where a commit failed the error says
        which daemons have committed.
    """
    checked_name(name)
    if mode not in MODES or parallel < 1 or attempts < 1:
        raise UsageError(f"mode is one of {', '.join(MODES)}; parallel and attempts are 1 or more")
    nodes = [uri.address for uri in control_uris(uris)]
    chosen = job or (_job_of(name, shards) if mode == "append" else uuid.uuid4().hex)
    clients: dict[str, Client] = {}
    try:
        for node in nodes:
            clients[node] = Client(
                node, token, tls=tls, connect_timeout=connect_timeout, timeout=timeout
            )
        told = {node: _info(client, name) for node, client in clients.items()}
        # What is appended bit by bit must not all begin at the same daemon.
        place = f"{name}/{chosen}" if mode == "append" else name
        holders = placed(place, len(shards), nodes, replicas)
        if mode == "append":
            _check_base(name, told, snapshot or chosen, len(shards))
        work = _Work(name, chosen, clients, attempts)
        copies = [
            (node, ordinal, shards[ordinal])
            for ordinal, nodes_of in enumerate(holders)
            for node in nodes_of
        ]
        stored = _sent(work, copies, min(parallel, _MOST_AT_ONCE), progress)
        if shards and schema is None:
            schema = _schema_of(shards[0])
        ordinals: dict[str, list[int]] = {node: [] for node in nodes}
        for node, ordinal, _ in copies:
            ordinals[node].append(ordinal)
        # A daemon with an earlier version has to learn that there is a new one.
        needed = [node for node in nodes if ordinals[node] or told[node] is not None or not shards]
        done = _committed(
            work,
            {node: ordinals[node] for node in needed},
            {
                "shards_total": len(shards),
                "snapshot": snapshot or chosen,
                "mode": mode,
                "schema": schema,
                "properties": properties,
            },
        )
    finally:
        for client in clients.values():
            client.close()
    rows = {shard.ordinal: shard.rows for shard in stored}
    return Spread(chosen, snapshot or chosen, len(shards), sum(rows.values()), done)


@dataclass(frozen=True, slots=True)
class _Work:
    name: str
    job: str
    clients: Mapping[str, Client]
    attempts: int

    def send(self, node: str, ordinal: int, source: ShardSource) -> StoredShard:
        """Send one copy; again if its connection breaks."""
        for attempt in range(1, self.attempts + 1):
            try:
                with _opened(source) as data:
                    client = self.clients[node]
                    return client.put_shard(self.name, data, job=self.job, ordinal=ordinal)
            except _PASSING as error:
                if attempt == self.attempts:
                    raise _at(
                        node, f"shard {ordinal} of {self.name!r} is not stored", error
                    ) from None
        raise AssertionError


def _sent(
    work: _Work,
    copies: Sequence[tuple[str, int, ShardSource]],
    parallel: int,
    progress: ShardProgress | None,
) -> list[StoredShard]:
    stored: list[StoredShard] = []
    with ThreadPoolExecutor(parallel, thread_name_prefix="splitarrow-spread") as pool:
        futures = [pool.submit(work.send, *copy) for copy in copies]
        try:
            for future in as_completed(futures):
                stored.append(future.result())
                if progress is not None:
                    progress(stored[-1])
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    _check_alike(work.name, stored)
    return stored


def _check_alike(name: str, stored: Sequence[StoredShard]) -> None:
    """Refuse copies that are not the same: a reader could not go on at another."""
    sums: dict[int, str] = {}
    for shard in stored:
        if sums.setdefault(shard.ordinal, shard.sha256) != shard.sha256:
            raise DatasetError(
                f"the daemons store shard {shard.ordinal} of {name!r} in different ways: they "
                "need the same version of pyarrow, and the shard the same rows each time",
                stream=name,
            )


def _committed(
    work: _Work, ordinals: Mapping[str, list[int]], options: dict[str, Any]
) -> dict[str, Published]:
    def commit(node: str) -> Published | SplitArrowError:
        failed: SplitArrowError | None = None
        for _ in range(work.attempts):
            try:
                return work.clients[node].publish(
                    work.name, job=work.job, ordinals=ordinals[node], **options
                )
            except SplitArrowError as error:
                failed = error
                if not isinstance(error, _PASSING):
                    break
        assert failed is not None
        return failed

    with ThreadPoolExecutor(max(1, min(len(ordinals), _MOST_AT_ONCE))) as pool:
        results = dict(zip(ordinals, pool.map(commit, ordinals), strict=True))
    failed = {w: told for w, told in results.items() if isinstance(told, SplitArrowError)}
    done = {w: told for w, told in results.items() if isinstance(told, Published)}
    if failed:
        reasons = "; ".join(f"{where}: {error}" for where, error in failed.items())
        raise DatasetError(
            f"{work.name!r} is not published everywhere: {reasons}; committed at "
            f"{', '.join(done) or 'none'}. Publish it again as the job {work.job!r}",
            stream=work.name,
        )
    return done


def _info(client: Client, name: str) -> DatasetInfo | None:
    try:
        return client.info(name)
    except NotFoundError:
        return None


def _check_base(
    name: str, told: Mapping[str, DatasetInfo | None], snapshot: str, added: int
) -> None:
    """Refuse to append where the daemons would not agree on the ordinals of the new shards."""
    bases: dict[str, int] = {}
    for node, info in told.items():
        if info is not None and info.shards_total is None:
            raise DatasetError(f"{node} has a dataset {name!r} that was not published", stream=name)
        total = 0 if info is None else info.shards_total or 0
        # What a publication that was cut short has committed already is not counted again.
        bases[node] = total - (added if info is not None and info.snapshot == snapshot else 0)
    if len(set(bases.values())) > 1:
        raise DatasetError(
            f"nothing can be appended to {name!r}, since the daemons do not have the same version "
            "of it: "
            + ", ".join(f"{count} shards at {node}" for node, count in bases.items())
            + "; publish all of it again with mode 'overwrite'",
            stream=name,
        )


def _job_of(name: str, shards: Sequence[ShardSource]) -> str:
    """Return what follows from the contents of files, so that the same ones are one job."""
    digest = hashlib.sha256(name.encode())
    for shard in shards:
        if not isinstance(shard, (str, os.PathLike)):
            raise UsageError("shards that are no files need a job: a name of this publication")
        path = os.fspath(cast("str | os.PathLike[str]", shard))
        try:
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise DatasetError(f"cannot read the shard {path}: {error.strerror}") from None
    return f"files-{digest.hexdigest()[:32]}"


def _schema_of(shard: ShardSource) -> pa.Schema:
    with _opened(shard) as source, shard_data(source) as data:
        return data.schema


@contextmanager
def _opened(source: ShardSource) -> Generator[Any]:
    found: Any = source() if callable(source) else source
    # Readers of Arrow data, and paths, are contexts too.
    if isinstance(found, (str, os.PathLike)) or hasattr(found, "__arrow_c_stream__"):
        yield found
    elif isinstance(found, AbstractContextManager):
        with cast("AbstractContextManager[Any]", found) as data:
            yield data
    else:
        yield found


def _at(node: str, what: str, error: SplitArrowError) -> SplitArrowError:
    return type(error)(f"{what} at {node}: {error.message}", stream=error.stream)
