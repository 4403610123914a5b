"""Paths into Variants: ``$.a[3]['b c']``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....errors import UsageError
from .types import Kind
from .values import Values, check_sizes, read_arrays, read_objects

Step = str | int
"""A field name, or the index of an element."""

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]'"\s]+)
      | \[(?P<index>[0-9]+)\]
      | \['(?P<single>(?:[^'\\]|\\.)*)'\]
      | \["(?P<double>(?:[^"\\]|\\.)*)"\]""",
    re.VERBOSE | re.DOTALL,
)
_MAX_INDEX = (1 << 32) - 1


def parse_path(path: str) -> list[Step]:
    """Return the steps of a path.

    A path starts with ``$``, the whole value. ``.name``, ``['name']`` and ``["name"]`` select a
    field, and ``[3]`` selects an element; the first one has index 0. In quotes, a backslash keeps
    the next character.

    Raises
    ------
    UsageError
        If the path is malformed.
    """
    if not path.startswith("$"):
        raise UsageError(f"the path {path!r} does not start with $; write $.{path}")
    steps: list[Step] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise UsageError(
                f"the path {path!r} is malformed at {path[at:]!r}: expected .name, ['name'] or [3]"
            )
        at = match.end()
        if match["index"] is not None:
            steps.append(min(int(match["index"][:11]), _MAX_INDEX))
        elif match["name"] is not None:
            steps.append(match["name"])
        else:
            quoted = match["single"] if match["single"] is not None else match["double"]
            steps.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
    return steps


def follow(values: Values, steps: Sequence[Step]) -> Values:
    """Return what is at a path, in the rows that have it.

    Only the objects and arrays on the path are read and checked.

    Raises
    ------
    InvalidDataError
        If one of them is invalid.
    """
    for step in steps:
        values = check_sizes(values)
        kind: Any = values.kinds()
        if isinstance(step, str):
            values = _select_field(values.take(np.flatnonzero(kind == Kind.OBJECT)), step)
        else:
            values = _select_element(values.take(np.flatnonzero(kind == Kind.ARRAY)), step)
        if not len(values):
            break
    return check_sizes(values)


def _select_field(values: Values, name: str) -> Values:
    key = values.context.names.find(name)
    _, entries = read_objects(values)
    if key < 0 or entries.key is None:
        return values.take(np.empty(0, np.int64))
    return entries.values.take(np.flatnonzero(entries.key == key))


def _select_element(values: Values, index: int) -> Values:
    _, entries = read_arrays(values)
    first = np.cumsum(entries.counts) - entries.counts
    return entries.values.take(first[entries.counts > index] + index)
