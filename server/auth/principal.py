"""Principals: authenticated callers, and the datasets that they may read and write."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

from ...errors import DeniedError, remote_error

MAX_NAME_CHARACTERS = 256
"""The longest name of a principal, in characters."""
ALL_DATASETS = "*"
"""The glob that must be among those for writing of an operator, exactly so."""


class Permission(StrEnum):
    """The operation on a dataset that a grant permits."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Grants:
    """The datasets that a principal may read and write, as globs of their names.

    ``*``, ``?`` and ``[…]`` have their usual meaning. ``*`` also matches a slash.
    """

    read: tuple[str, ...] = ()
    """Datasets to read and to see in listings."""
    write: tuple[str, ...] = ()
    """Datasets to upload, replace and drop. Writing does not include reading."""

    def allow(self, permission: Permission, dataset: str) -> bool:
        """Return whether the grants give a permission for a dataset.

        Examples
        --------
        >>> Grants(read=("trips/*",)).allow(Permission.READ, "trips/2026")
        True
        >>> Grants(read=("trips/*",)).allow(Permission.WRITE, "trips/2026")
        False
        """
        globs = self.read if permission is Permission.READ else self.write
        return any(_compile_glob(glob).match(dataset) is not None for glob in globs)


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. It holds no token."""

    name: str
    """The name in logs and tickets."""
    grants: Grants = field(default=Grants())
    """The datasets that the principal may use."""
    limits: tuple[Grants, ...] = ()
    """Further grants, each of which must allow what the principal does."""
    expires: float | None = field(default=None, compare=False)
    """When the token ends, in seconds since the epoch; None if it is not known to end."""

    def may(self, permission: Permission, dataset: str) -> bool:
        """Return whether the principal has a permission for a dataset."""
        return all(grants.allow(permission, dataset) for grants in (self.grants, *self.limits))

    @property
    def is_operator(self) -> bool:
        """Whether the principal may act on the whole server: ``*`` is one of its globs for writing.

        No other glob has this meaning, even if it matches every name.
        """
        return ALL_DATASETS in self.grants.write

    def require_operator(self) -> None:
        """Raise `DeniedError` unless the principal may act on the whole server."""
        if not self.is_operator:
            raise DeniedError(
                f"{self.name!r} may not act on the whole server; its grants for writing must "
                f"include {ALL_DATASETS!r}"
            )

    def require(self, permission: Permission, dataset: str) -> None:
        """Raise `DeniedError` unless the principal may use a dataset, which need not exist."""
        if not self.may(permission, dataset):
            raise DeniedError(f"{self.name!r} may not {permission} {dataset!r}", stream=dataset)


ANYONE = Principal("anyone", Grants(("*",), ("*",)))
"""The principal of every caller of a server that requires no token."""


def unauthenticated(message: str) -> DeniedError:
    """Return the error for a caller whose token or ticket is missing or invalid."""
    error = remote_error("UNAUTHENTICATED", message)
    assert isinstance(error, DeniedError)
    return error


def is_principal_name(value: Any) -> bool:
    """Return whether a value is short text without control characters."""
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARACTERS and value.isprintable()


def parse_globs(value: Any) -> tuple[str, ...] | None:
    """Return a list of non-empty strings as a tuple, or None if the value is something else."""
    if not isinstance(value, (list, tuple)):
        return None
    items: Iterable[Any] = value
    globs = tuple(item for item in items if isinstance(item, str) and item)
    return globs if len(globs) == len(value) else None


@lru_cache(4096)
def _compile_glob(glob: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(glob))
