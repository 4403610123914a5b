"""Host memory of others that is page-locked in place, so that a device copies from it directly."""

from __future__ import annotations

import contextlib
import logging
import threading

from ..errors import SplitArrowError
from ..units import format_size
from .device import Device

_log = logging.getLogger("splitarrow.memory")


class HostRegistration:
    """Memory that is page-locked while this object lives, or until `close`."""

    def __init__(self, owner: HostRegistrations, address: int, nbytes: int) -> None:
        self._owner = owner
        self._address = address
        self._nbytes = nbytes

    def close(self) -> None:
        """Wait for copies from the memory, and make it pageable again. Idempotent."""
        nbytes, self._nbytes = self._nbytes, 0
        if nbytes:
            self._owner.remove(self._address, nbytes)

    def __del__(self) -> None:
        with contextlib.suppress(SplitArrowError):  # CUDA is shutting down
            self.close()


class HostRegistrations:
    """Page-locks memory that a transport has mapped, up to a limit.

    Parameters
    ----------
    device : Device
        The device.
    limit : int
        The limit on all such memory, in bytes.
    """

    def __init__(self, device: Device, limit: int) -> None:
        self._device = device
        self._limit = limit
        self._lock = threading.Lock()
        self._nbytes = 0
        self._has_logged = False

    def add(self, address: int, nbytes: int) -> HostRegistration | None:
        """Page-lock read-only memory that begins at a page.

        Returns
        -------
        HostRegistration or None
            None if the driver refuses, or the limit is reached. The reason is logged once.
        """
        with self._lock:
            has_room = self._nbytes + nbytes <= self._limit
            if has_room:
                self._nbytes += nbytes
        if not has_room:
            limit = format_size(self._limit)
            self._explain(f"it would be more than the {limit} of the staging memory")
            return None
        try:
            self._device.register_host(address, nbytes)
        except (SplitArrowError, MemoryError) as error:
            with self._lock:
                self._nbytes -= nbytes
            self._explain(str(error))
            return None
        return HostRegistration(self, address, nbytes)

    def remove(self, address: int, nbytes: int) -> None:
        """Make memory pageable again, after the copies from it."""
        self._device.record().wait()
        self._device.unregister_host(address)
        with self._lock:
            self._nbytes -= nbytes

    def _explain(self, reason: str) -> None:
        if not self._has_logged:
            self._has_logged = True
            _log.debug(
                "shared memory is not page-locked for %s, so its batches are copied through "
                "staging memory: %s",
                self._device.name,
                reason,
            )
