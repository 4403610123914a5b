"""How many bytes uploads may take, all together and each."""

from __future__ import annotations

import threading

from ...errors import ExhaustedError


class Quota:
    """Counts the bytes of what is stored and of what is being uploaded. Safe to use from threads.

    Parameters
    ----------
    total_bytes : int or None
        How many bytes all uploads together may take.
    upload_bytes : int or None
        How many bytes one may take.
    """

    def __init__(self, total_bytes: int | None = None, upload_bytes: int | None = None) -> None:
        self._total_bytes = total_bytes
        self._upload_bytes = upload_bytes
        self._lock = threading.Lock()
        self._taken: dict[object, int] = {}

    def reserve(self, owner: object, nbytes: int, name: str) -> None:
        """Note that an upload takes this many bytes.

        Parameters
        ----------
        owner : object
            What takes them; what it took before is given back.
        nbytes : int
            How many, of all that belongs to it.
        name : str
            The dataset, for the error.

        Raises
        ------
        ExhaustedError
            If that is more than there may be.
        """
        with self._lock:
            others = sum(taken for other, taken in self._taken.items() if other != owner)
            for most, taken in ((self._upload_bytes, 0), (self._total_bytes, others)):
                if most is not None and taken + nbytes > most:
                    raise ExhaustedError(
                        f"the upload takes {nbytes} bytes or more; there is room for "
                        f"{max(0, most - taken)} of {most}",
                        stream=name,
                    )
            self._taken[owner] = nbytes

    def keep(self, owner: object, nbytes: int) -> None:
        """Note what is stored already, whatever the limits are."""
        with self._lock:
            self._taken[owner] = nbytes

    def settle(self, owner: object, stored: object) -> int:
        """Let what an upload took belong to what was made of it; return how many bytes."""
        with self._lock:
            nbytes = self._taken.pop(owner, 0)
            self._taken[stored] = nbytes
            return nbytes

    def release(self, owner: object) -> None:
        """Give back what something took. Idempotent."""
        with self._lock:
            self._taken.pop(owner, None)
