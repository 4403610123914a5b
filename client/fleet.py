"""The client of several control planes that share datasets: one list, one read, replicas."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

import pyarrow as pa

from ..errors import (
    ClosedError,
    ConnectError,
    DatasetError,
    DeniedError,
    NotFoundError,
    RemoteError,
    SplitArrowError,
    UsageError,
    remote_error,
)
from ..protocol.uri import DataUri
from ..transport.certificates import TlsOptions
from .control import Client
from .described import DatasetInfo
from .merging import Answer, Holding, Merged, listed, merge
from .reading import Reading, checked_name, chosen_parts, pinned
from .resuming import Origin, ResumingPart

_AGAIN_SECONDS = 2.0
"""The longest time to connect to a daemon that was away before."""
_MOST_AT_ONCE = 32
_SETTLING = (0.1, 0.3, 1.0)
"""How long to wait for daemons that commit one after the other, in seconds."""
_WRONG = ("INVALID_ARGUMENT", "UNIMPLEMENTED")
_T = TypeVar("_T")


class FleetClient(Client):
    """A connection to several control planes: a context manager. Made by `connect`.

    Datasets of the same name are taken together by the snapshot and the ordinals of their
    shards; see docs/guide/several-daemons.md. A daemon that is away is asked again by each
    call. Safe to use from several threads.

    Parameters
    ----------
    uris : sequence of DataUri
        The addresses.
    token : str, optional
        What tells every server who calls.
    tls, connect_timeout, timeout
        See `connect`.

    Raises
    ------
    ConnectError
        If none of them answers.
    """

    def __init__(
        self,
        uris: Sequence[DataUri],
        token: str | None = None,
        *,
        tls: TlsOptions | None = None,
        connect_timeout: float = 10.0,
        timeout: float = 30.0,
    ) -> None:
        self._tls = tls
        self._pool = ThreadPoolExecutor(
            min(len(uris), _MOST_AT_ONCE), thread_name_prefix="splitarrow-fleet"
        )
        self._daemons = {
            uri.address: _Daemon(uri, token, tls, connect_timeout, timeout) for uri in uris
        }
        self._closed = False
        self.absent: dict[str, SplitArrowError] = {}
        """Which daemons have failed the last call that all were asked, and why."""
        try:
            self._each(lambda client: None)
            if len(self.absent) == len(self._daemons):
                errors = list(self.absent.values())
                told = "; ".join(f"{where}: {error}" for where, error in self.absent.items())
                denied = all(isinstance(error, DeniedError) for error in errors)
                error = errors[0] if denied else ConnectError("")
                raise _like(error, f"no daemon answers: {told}")
        except BaseException:
            self.close()
            raise

    @property
    def uri(self) -> str:
        """The addresses of the control planes."""
        return ",".join(self._daemons)

    @property
    def uris(self) -> list[str]:
        """The address of each control plane."""
        return list(self._daemons)

    def at(self, uri: str) -> Client:
        """Return the client of one of the daemons; it belongs to this one.

        Raises
        ------
        UsageError
            If it is none of them.
        ConnectError
            If it does not answer.
        """
        try:
            return self._daemons[uri].client()
        except KeyError:
            raise UsageError(f"{uri} is none of {self.uri}") from None

    def datasets(self, glob: str | None = None) -> list[DatasetInfo]:
        """Return what the daemons have, by name; see `Client.datasets`.

        A dataset that cannot be read, because parts are missing or two are called the same, is
        listed with the kind ``incomplete``; `info` says why.
        """
        found = self._each(lambda client: client.datasets(glob))
        names: dict[str, None] = {}
        for told in found.values():
            if not isinstance(told, SplitArrowError):
                names.update(dict.fromkeys(info.name for info in told))
        if not names and (errors := [e for e in found.values() if isinstance(e, SplitArrowError)]):
            raise errors[0]
        return [listed(name, _listed_answers(name, found)) for name in names]

    def info(self, name: str) -> DatasetInfo:
        """Return what the daemons tell of a dataset together.

        Its version is the snapshot, and its endpoints are in the order of their ordinals.

        Raises
        ------
        NotFoundError
            If none has it.
        ConnectError, DatasetError
            If parts are missing, or it is not the same everywhere.
        """
        return self._merged({"dataset": checked_name(name)}).info

    def schema(self, name: str) -> pa.Schema:
        """Return the schema of a dataset."""
        return self.info(name).schema

    def put(self, name: str, *data: Any, **options: Any) -> NoReturn:
        """Refuse: a dataset is uploaded to one daemon, or published to several."""
        raise self._for_one(f"put stores {name!r}")

    def put_shard(self, name: str, *data: Any, **options: Any) -> NoReturn:
        """Refuse: a shard is uploaded to one daemon; see `at`."""
        raise self._for_one(f"put_shard stores a shard of {name!r}")

    def publish(self, name: str, **options: Any) -> NoReturn:
        """Refuse: a publication is committed by each daemon; see `at`."""
        raise self._for_one(f"publish commits {name!r}")

    def discard(self, name: str, job: str) -> NoReturn:
        """Refuse: a publication is given up by each daemon; see `at`."""
        raise self._for_one(f"discard gives up {job!r}")

    def drop(self, name: str) -> None:
        """Remove a dataset that was uploaded or published, from every daemon that has it.

        Raises
        ------
        NotFoundError
            If none has it.
        SplitArrowError
            If a daemon does not answer or refuses; the others have dropped it.
        """
        checked_name(name)
        dropped = self._each(lambda client: client.drop(name))
        failed = {w: e for w, e in dropped.items() if isinstance(e, SplitArrowError)}
        others = {w: e for w, e in failed.items() if not isinstance(e, NotFoundError)}
        if others:
            told = "; ".join(f"{where}: {error}" for where, error in others.items())
            raise _like(next(iter(others.values())), f"{name!r} is not dropped everywhere: {told}")
        if len(failed) == len(dropped):
            raise NotFoundError(f"no dataset {name!r} was uploaded to {self.uri}", stream=name)

    def status(self) -> dict[str, Any]:
        """Return what the daemons count: ``{"daemons": {address: status or {"error": …}}}``."""
        found = self._each(lambda client: client.status())
        return {
            "daemons": {
                where: {"error": str(told)} if isinstance(told, SplitArrowError) else told
                for where, told in found.items()
            }
        }

    def act(self, action: str, body: bytes = b"", *, subject: str | None = None) -> bytes:
        """Refuse: an action is done by one daemon; see `at`."""
        raise self._for_one(f"act does {action!r}")

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._closed = True
        self._pool.shutdown(wait=False)
        for daemon in self._daemons.values():
            daemon.close()

    def __repr__(self) -> str:
        return f"<splitarrow.FleetClient of {self.uri}>"

    def _for_one(self, what: str) -> UsageError:
        return UsageError(
            f"{what} at one daemon: use at(uri) for one of {self.uri}, or publish_folder for all"
        )

    def _each(self, work: Callable[[Client], _T]) -> dict[str, _T | SplitArrowError]:
        """Do something at every daemon at a time; return the results, and the errors.

        Raises
        ------
        SplitArrowError
            What is no daemon's fault.
        """
        if self._closed:
            raise ClosedError(f"the client of {self.uri} is closed")

        def at(daemon: _Daemon) -> _T | SplitArrowError:
            try:
                return work(daemon.client())
            except UsageError:
                raise
            except SplitArrowError as error:
                return error

        running = {w: self._pool.submit(at, daemon) for w, daemon in self._daemons.items()}
        found = {where: future.result() for where, future in running.items()}
        self.absent = {w: told for w, told in found.items() if isinstance(told, SplitArrowError)}
        return found

    def _merged(self, asked: dict[str, Any]) -> Merged:
        """Return what the daemons have together; wait a little while they publish."""
        name: str = asked["dataset"]
        for pause in _SETTLING:
            answers = self._answers(asked)
            snapshots = {answer.info.snapshot for answer in answers if answer.info is not None}
            try:
                return merge(name, answers)
            except DatasetError:
                if len(snapshots) < 2 or "" in snapshots:
                    raise
            time.sleep(pause)
        return merge(name, self._answers(asked))

    def _answers(self, asked: dict[str, Any]) -> list[Answer]:
        found = self._each(lambda client: client.asked(asked))
        answers = [
            Answer(where, None, told)
            if isinstance(told, SplitArrowError)
            else Answer(where, told, None)
            for where, told in found.items()
        ]
        for answer in answers:
            error = answer.error
            if isinstance(error, RemoteError) and error.code in _WRONG:
                raise error  # the request is wrong, wherever it goes
        return answers

    def _parts(
        self, asked: dict[str, Any], limit: int | None, shards: frozenset[int] | None, how: Reading
    ) -> tuple[pa.Schema, list[ResumingPart]]:
        name: str = asked["dataset"]
        version = asked.get("version")
        asked = {key: value for key, value in asked.items() if key != "version"}
        merged = self._merged(asked)
        if version is not None and version != merged.info.version:
            raise remote_error(
                "FAILED_PRECONDITION",
                f"the dataset {name!r} has changed: its version is {merged.info.version}, "
                f"not {version}",
                stream=name,
            )
        parts: list[ResumingPart] = []
        away: set[str] = set()
        left = limit
        for place in chosen_parts(merged.info, shards):
            rows = merged.info.endpoints[place].rows
            if left is not None and left <= 0:
                break
            copies = self._preferred(merged.parts[place], place)
            origins = [self._origin(copy, asked, how, limit is None) for copy in copies]
            ordinal = merged.info.endpoints[place].ordinal
            ordinal = place if ordinal is None else ordinal
            parts.append(ResumingPart(origins, name, left, how.resume_attempts, ordinal, away))
            if left is not None and rows is not None and merged.info.rows is not None:
                left -= rows
        return merged.info.schema, parts

    def _origin(
        self, copy: Holding, asked: dict[str, Any], how: Reading, described: bool
    ) -> Origin:
        client = self._daemons[copy.where].client()
        endpoint = copy.endpoint
        if copy.shard is not None:
            endpoint = pinned(endpoint, copy.version)
        return Origin(
            client.way(how),
            endpoint if described else None,
            copy.version,
            copy.shard,
            lambda more: client.asked({**asked, **more}),
        )

    def _preferred(self, copies: Sequence[Holding], place: int) -> list[Holding]:
        """Return copies on this host first, and spread the parts over those that are alike."""
        start = place % len(copies)
        turned = [*copies[start:], *copies[:start]]
        return sorted(turned, key=lambda copy: not self._daemons[copy.where].is_here)


class _Daemon:
    """One of the daemons: connected to when it is there."""

    def __init__(
        self,
        uri: DataUri,
        token: str | None,
        tls: TlsOptions | None,
        connect_timeout: float,
        timeout: float,
    ) -> None:
        self.is_here = _is_here(uri.host)
        self._uri = uri
        self._connect_timeout = connect_timeout
        self._connect: Callable[[float], Client] = lambda seconds: Client(
            uri, token, tls=tls, connect_timeout=seconds, timeout=timeout
        )
        self._client: Client | None = None
        self._lock = threading.Lock()
        self._closed = False

    def client(self) -> Client:
        """Return the client; connect if there is none yet."""
        with self._lock:
            if self._closed:
                raise ClosedError(f"the client of {self._uri.address} is closed")
            if self._client is None:
                seconds, self._connect_timeout = (
                    self._connect_timeout,
                    min(self._connect_timeout, _AGAIN_SECONDS),
                )
                self._client = self._connect(seconds)
            return self._client

    def close(self) -> None:
        """Close the connection, if there is one."""
        with self._lock:
            self._closed = True
            if self._client is not None:
                self._client.close()


def _listed_answers(
    name: str, found: dict[str, list[DatasetInfo] | SplitArrowError]
) -> list[Answer]:
    answers: list[Answer] = []
    for where, told in found.items():
        if isinstance(told, SplitArrowError):
            answers.append(Answer(where, None, told))
            continue
        info = next((info for info in told if info.name == name), None)
        absent = None if info is not None else NotFoundError(f"no dataset {name!r}", stream=name)
        answers.append(Answer(where, info, absent))
    return answers


def _like(error: SplitArrowError, message: str) -> SplitArrowError:
    if isinstance(error, RemoteError):
        return remote_error(error.code, message, stream=error.stream)
    return type(error)(message, stream=error.stream)


def _is_here(host: str) -> bool:
    """Tell whether a host is this one, by its name alone: nobody is asked."""
    return host in ("localhost", "::1", socket.gethostname()) or host.startswith("127.")
