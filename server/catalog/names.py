"""Names that are nearly right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST = 3
_ALIKE = 0.5


def nearest(name: str, existing: Iterable[str]) -> str:
    """Return a clause that names what may have been meant; empty if there is nothing at all.

    Parameters
    ----------
    name : str
        What was asked for.
    existing : iterable of str
        What there is.

    Examples
    --------
    >>> nearest("flihgts", ["flights", "trips"])
    "; the nearest is 'flights'"
    >>> nearest("x", ["flights", "trips"])
    "; there are 'flights', 'trips'"
    """
    known: dict[str, str] = {}
    for candidate in existing:
        known.setdefault(candidate.lower(), candidate)
    alike = difflib.get_close_matches(name.lower(), known, n=_MOST, cutoff=_ALIKE)
    if alike:
        words = "the nearest is" if len(alike) == 1 else "the nearest are"
        return f"; {words} {', '.join(repr(known[key]) for key in alike)}"
    if not known:
        return ""
    names = [repr(candidate) for candidate in known.values()]
    if len(names) == 1:
        return f"; there is only {names[0]}"
    if len(names) > _MOST + 1:
        return f"; there are {', '.join(names[:_MOST])} and {len(names) - _MOST} more"
    return f"; there are {', '.join(names)}"
