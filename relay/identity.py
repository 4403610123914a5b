"""Readers that the upstream knows: a relay forwards their tokens, and keeps the answers."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..client.dataset.client import Client
from ..errors import (
    DatasetError,
    DeniedError,
    ProtocolError,
    RemoteError,
    SplitArrowError,
    remote_error,
)
from ..protocol.uri import DataUri
from ..server.auth.principal import Grants, Principal, is_principal_name, parse_globs

ACTION = "identity"
"""The action that describes its caller."""
_MAX_ANSWERS = 4096
_MAX_CALLS = 16
"""The tokens that the upstream is asked about at the same time."""
_TIMEOUT_SECONDS = 5.0
_MAX_SECONDS = 60.0
"""The longest time that an answer holds, whatever the upstream states."""
_UNKNOWN_SECONDS = 5.0
"""The time that a token stays unknown."""
_FAILURE_SECONDS = 1.0
"""The time after which the upstream is asked again if it did not say."""


@dataclass(slots=True)
class _Answer:
    """What the upstream knows of a token."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the upstream is asked."""
    principal: Principal | None = None
    failure: str = ""
    """Why the upstream did not say."""
    ends: float = 0.0
    """When to ask again (`time.monotonic`)."""


class UpstreamIdentities:
    """Finds the principals of tokens that the upstream knows. Safe to use from several threads.

    All daemons of the upstream are asked: a reader may read what all of them allow. An answer is
    used for as long as they state. The tokens are not kept.
    """

    def __init__(self, upstreams: Sequence[DataUri]) -> None:
        self._upstreams = upstreams
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()
        """The answers by the SHA-256 of the token, the one used least recently first."""
        self._lock = threading.Lock()
        self._calls = threading.BoundedSemaphore(_MAX_CALLS)

    def identify(self, token: str) -> Principal | None:
        """Return the principal of a token; None if the upstream does not know it.

        Raises `RemoteError` (UNAVAILABLE) if the upstream does not say, and no answer holds any
        more.
        """
        answer = self._find_answer(hashlib.sha256(token.encode()).digest())
        with answer.lock:
            if time.monotonic() >= answer.ends:
                if not self._calls.acquire(blocking=False):
                    raise remote_error("UNAVAILABLE", "too many new tokens at a time; try again")
                try:
                    answer.principal, seconds = self._ask(token)
                    answer.failure = ""
                except SplitArrowError as error:
                    answer.failure, seconds = error.message, _FAILURE_SECONDS
                finally:
                    self._calls.release()
                answer.ends = time.monotonic() + seconds
            if answer.failure:
                raise remote_error("UNAVAILABLE", answer.failure)
            return answer.principal

    def _find_answer(self, key: bytes) -> _Answer:
        with self._lock:
            answer = self._answers.setdefault(key, _Answer())
            self._answers.move_to_end(key)
            if len(self._answers) > _MAX_ANSWERS:
                self._answers.popitem(last=False)
        return answer

    def _ask(self, token: str) -> tuple[Principal | None, float]:
        """Return what all daemons say of a token, and for how many seconds."""
        begin = time.time()
        found: list[tuple[str, list[Grants], float]] = []
        for uri in self._upstreams:
            try:
                with Client(uri, token, check=False, timeout=_TIMEOUT_SECONDS) as client:
                    found.append(_parse(client.act(ACTION)))
            except DeniedError:
                return None, _UNKNOWN_SECONDS
            except SplitArrowError as error:
                reason = error.message
                if isinstance(error, RemoteError) and error.code == "UNIMPLEMENTED":
                    reason = "it is too old to say"
                raise DatasetError(f"cannot ask {uri.address} about the token: {reason}") from None
        if len({name for name, *_ in found}) > 1:
            return None, _UNKNOWN_SECONDS
        seconds = min(seconds for *_, seconds in found)
        first, *limits = dict.fromkeys(grants for _, each, _ in found for grants in each)
        return Principal(found[0][0], first, tuple(limits), expires=begin + seconds), seconds


def _parse(answer: bytes) -> tuple[str, list[Grants], float]:
    """Return the name, the grants and the seconds of an answer."""
    try:
        fields: dict[str, Any] = json.loads(answer)
        name, seconds = fields["name"], float(fields["seconds"])
        grants = [
            Grants(read=globs) for globs in map(parse_globs, fields["read"]) if globs is not None
        ]
        is_whole = is_principal_name(name) and 0 < len(grants) == len(fields["read"])
        if not (is_whole and seconds >= 0):  # which NaN is not
            raise ValueError
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ProtocolError("its answer is malformed") from None
    return name, grants, min(seconds, _MAX_SECONDS)
