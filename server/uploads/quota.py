"""The quota of uploads: the bytes that they may take together, and each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from ...errors import ExhaustedError


class Quota:
    """Counts bytes by their owner. Safe to use from several threads.

    Any hashable object can be an owner: a running upload, a dataset, a staged shard. All of them
    together may have `total_bytes`, and an upload `upload_bytes`. None disables a limit.
    """

    def __init__(self, total_bytes: int | None = None, upload_bytes: int | None = None) -> None:
        self._total_bytes = total_bytes
        self._upload_bytes = upload_bytes
        self._lock = threading.Lock()
        self._used: dict[Hashable, int] = {}
        self._measures: dict[Hashable, Callable[[], int]] = {}

    def reserve(
        self, owner: Hashable, nbytes: int, dataset: str, *, is_upload: bool = True
    ) -> None:
        """Count an upload with its bytes so far, in place of its earlier reservation.

        `upload_bytes` does not limit what is not an upload: the manifest of a publication.
        """
        try:
            self._reserve(owner, nbytes, dataset, is_upload)
        except ExhaustedError:
            self._measure_again()
            self._reserve(owner, nbytes, dataset, is_upload)

    def record(self, owner: Hashable, nbytes: int) -> None:
        """Count an owner with its size in bytes, even if that exceeds a limit."""
        with self._lock:
            self._used[owner] = nbytes

    def record_measured(self, owner: Hashable, measure: Callable[[], int]) -> None:
        """Count an owner that may shrink by itself, even if it exceeds a limit.

        `measure` returns its bytes. It is called now, and again before an upload is refused.
        """
        nbytes = measure()
        with self._lock:
            self._used[owner] = nbytes
            self._measures[owner] = measure

    def transfer(self, owner: Hashable, new_owner: Hashable) -> int:
        """Count the bytes of an owner for another one from now on, and return them."""
        with self._lock:
            nbytes = self._used.pop(owner, 0)
            self._used[new_owner] = nbytes
            return nbytes

    def release(self, owner: Hashable) -> None:
        """Stop counting an owner. Idempotent."""
        with self._lock:
            self._used.pop(owner, None)
            self._measures.pop(owner, None)

    def _reserve(self, owner: Hashable, nbytes: int, dataset: str, is_upload: bool) -> None:
        with self._lock:
            others = sum(used for other, used in self._used.items() if other != owner)
            upload_limit = self._upload_bytes if is_upload else None
            for limit, used in ((upload_limit, 0), (self._total_bytes, others)):
                if limit is not None and used + nbytes > limit:
                    raise ExhaustedError(
                        f"the {'upload' if is_upload else 'publication'} has at least {nbytes} "
                        "bytes; "
                        f"{max(0, limit - used)} of {limit} bytes are available",
                        stream=dataset,
                    )
            self._used[owner] = nbytes

    def _measure_again(self) -> None:
        with self._lock:
            measures = list(self._measures.items())
        sizes = [(owner, measure()) for owner, measure in measures]
        with self._lock:
            for owner, nbytes in sizes:
                if owner in self._measures:
                    self._used[owner] = nbytes
