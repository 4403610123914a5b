"""Calling a function for consecutive items in several threads, with the results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(
    function: Callable[[Item], Result], items: Iterator[Item], threads: int
) -> Generator[Result]:
    """Yield the results of a function in the order of the items.

    Closing the generator waits for the calls that are running, and drops the others.

    Parameters
    ----------
    function : callable
        It must be thread-safe if there are several threads. Its exceptions arrive in order.
    items : iterator
        The items. The caller's thread takes them, at most `threads` ahead.
    threads : int
        The number of threads. With 0, the caller's thread calls the function.
    """
    if not threads:
        for item in items:
            result = function(item)
            del item  # it may refer to leased memory
            yield result
            del result
        return
    pool = ThreadPoolExecutor(threads, "splitarrow-convert")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            del item
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
