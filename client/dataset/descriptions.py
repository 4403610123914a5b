"""Descriptions of dataset versions that a client keeps for random access."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from ...protocol.request import Request

_MAX_DESCRIPTIONS = 8
_T = TypeVar("_T")


class Descriptions(Generic[_T]):
    """Keeps the last descriptions of fixed versions, which do not change.

    A reader that reads many parts of one version needs its description only once. Safe to use from
    several threads.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Request, _T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, request: Request, describe: Callable[[Request], _T]) -> _T:
        """Return the description for a request.

        Parameters
        ----------
        request : Request
            The request. Only the description of a request with a version is kept.
        describe : callable
            Requests the description. Its errors are raised.
        """
        if request.version is None:
            return describe(request)
        with self._lock:
            known = self._known.get(request)
            if known is not None:
                self._known.move_to_end(request)
                return known
        description = describe(request)
        with self._lock:
            self._known[request] = description
            if len(self._known) > _MAX_DESCRIPTIONS:
                self._known.popitem(last=False)
        return description
