"""Who somebody is, once that is proven, and what they may do."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ...errors import DeniedError, remote_error

NAME_LENGTH = 256
"""The longest name of a principal, in characters."""


@dataclass(frozen=True, slots=True)
class Grants:
    """Names of datasets as globs: ``*``, ``?`` and ``[…]``, and ``*`` also matches a slash."""

    read: tuple[str, ...] = ()
    """What may be read, and seen in listings."""
    write: tuple[str, ...] = ()
    """What may be uploaded, replaced and dropped. It does not include reading."""

    def cover(self, dataset: str, action: str) -> bool:
        """Tell whether a dataset is among them.

        Examples
        --------
        >>> Grants(read=("trips/*",)).cover("trips/2026", "read")
        True
        >>> Grants(read=("trips/*",)).cover("trips/2026", "write")
        False
        """
        globs = {"read": self.read, "write": self.write}.get(action, ())
        return any(_pattern(glob).match(dataset) is not None for glob in globs)


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whose token was checked. It holds no token."""

    name: str
    """What the token's owner is called, in logs and tickets."""
    grants: Grants = field(default=Grants())
    """What they may do."""

    def may(self, dataset: str, action: str = "read") -> bool:
        """Tell whether this principal may read or write a dataset."""
        return self.grants.cover(dataset, action)

    def require(self, dataset: str, action: str = "read") -> None:
        """Refuse what is not granted, whether or not there is such a dataset.

        Raises
        ------
        DeniedError
            With the code PERMISSION_DENIED.
        """
        if not self.may(dataset, action):
            raise DeniedError(f"{self.name!r} may not {action} {dataset!r}")


ANYONE = Principal("anyone", Grants(("*",), ("*",)))
"""Everybody, where the server asks for no token."""


def unauthenticated(message: str) -> DeniedError:
    """Return the error for somebody who has not shown who they are."""
    error = remote_error("UNAUTHENTICATED", message)
    assert isinstance(error, DeniedError)
    return error


def is_name(value: Any) -> bool:
    """Tell whether a value may be the name of a principal: short, and harmless in a log."""
    return isinstance(value, str) and 0 < len(value) <= NAME_LENGTH and value.isprintable()


def globs_of(value: Any) -> tuple[str, ...] | None:
    """Return a list of globs as a tuple; None if it is no list of non-empty strings."""
    if not isinstance(value, (list, tuple)):
        return None
    items: Iterable[Any] = value
    globs = tuple(item for item in items if isinstance(item, str) and item)
    return globs if len(globs) == len(value) else None


@lru_cache(4096)
def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(glob))
