"""The filters that one principal evaluates at a time."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any
from weakref import WeakValueDictionary

from anyio import CapacityLimiter

from ..protocol.request import Request

FilterSlot = AbstractAsyncContextManager[Any, Any]
"""Holds a slot, if one is needed, while it is entered. It may be entered again and again."""


class FilterSlots:
    """Bounds the filters that one principal evaluates at a time.

    Each evaluation takes a worker thread, memory and a processor. A stream with a filter waits for
    a slot of its principal before it takes a worker thread, so threads stay free for others.

    Parameters
    ----------
    limit : int
        The number of slots of each principal.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._limiters: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()

    def slot_for(self, request: Request, principal: str) -> FilterSlot:
        """Return the slot that a stream has to hold while it reads its dataset."""
        if request.filter is None:
            return nullcontext()
        limiter = self._limiters.get(principal)
        if limiter is None:
            limiter = self._limiters[principal] = CapacityLimiter(self._limit)
        return limiter
