"""The calls that run for each client address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from urllib.parse import unquote

from ...errors import ExhaustedError


class AddressCalls:
    """Bounds the calls that run at a time for one client address.

    One connection of gRPC carries many calls, so that a limit on connections does not bound them.

    Parameters
    ----------
    get_limit : callable
        Returns the number of calls that one address may run at a time.

    Examples
    --------
    >>> calls = AddressCalls(lambda: 1)
    >>> with calls.count("ipv4:192.0.2.7:1001"), calls.count("ipv4:192.0.2.8:1001"):
    ...     with calls.count("ipv4:192.0.2.7:1002"):
    ...         pass
    Traceback (most recent call last):
    splitarrow.errors.ExhaustedError: the address 192.0.2.7 has reached its limit of 1 ...
    """

    def __init__(self, get_limit: Callable[[], int]) -> None:
        self._get_limit = get_limit
        self._running = Counter[str]()

    @contextmanager
    def count(self, peer: str) -> Generator[None]:
        """Count a call while the context lasts.

        Parameters
        ----------
        peer : str
            The protocol, the address and the port of the client, as gRPC writes them.

        Raises
        ------
        ExhaustedError
            If the address has reached its limit.
        """
        address = unquote(peer.partition(":")[2].rpartition(":")[0])
        limit = self._get_limit()
        if self._running[address] >= limit:
            calls = "call" if limit == 1 else "calls"
            raise ExhaustedError(
                f"the address {address} has reached its limit of {limit} concurrent {calls}; "
                "retry later"
            )
        self._running[address] += 1
        try:
            yield
        finally:
            self._running[address] -= 1
            if not self._running[address]:
                del self._running[address]
