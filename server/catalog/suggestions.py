"""Suggestions of similar names for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MAX_NAMES = 3
_MIN_SIMILARITY = 0.5


def suggest_names(name: str, existing: Iterable[str]) -> str:
    """Return a clause for the end of an error message about an unknown name.

    Examples
    --------
    >>> suggest_names("flihgts", ["flights", "trips"])
    "; the nearest is 'flights'"
    >>> suggest_names("x", ["flights", "trips"])
    "; there are 'flights', 'trips'"
    """
    by_lower_case: dict[str, str] = {}
    for candidate in existing:
        by_lower_case.setdefault(candidate.lower(), candidate)
    similar = difflib.get_close_matches(
        name.lower(), by_lower_case, n=_MAX_NAMES, cutoff=_MIN_SIMILARITY
    )
    if similar:
        verb = "is" if len(similar) == 1 else "are"
        return f"; the nearest {verb} {', '.join(repr(by_lower_case[key]) for key in similar)}"
    names = [repr(candidate) for candidate in by_lower_case.values()]
    if not names:
        return ""
    if len(names) == 1:
        return f"; there is only {names[0]}"
    if len(names) > _MAX_NAMES + 1:
        return f"; there are {', '.join(names[:_MAX_NAMES])} and {len(names) - _MAX_NAMES} more"
    return f"; there are {', '.join(names)}"
