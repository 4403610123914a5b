"""Checks of the arguments of `StreamDataset` that need no daemon."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import Any

from ..errors import UsageError
from ..transport.registry import list_schemes
from .torch_module import torch

_OTHER_TRANSPORTS = ("auto", "flight")


def check_columns(columns: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the columns to read; None for all.

    Raises
    ------
    UsageError
        If there are none.
    """
    if columns is None:
        return None
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names:
        raise UsageError("columns is empty; expected one column or more, or None for all")
    return names


def check_seed(seed: Any) -> int:
    """Return a seed as an integer.

    Raises
    ------
    UsageError
        If it is not one.
    """
    try:
        return operator.index(seed)
    except TypeError:
        raise UsageError(f"seed is {seed!r}; expected an integer") from None


def check_transport(transport: str) -> str:
    """Return the name of a transport.

    Raises
    ------
    UsageError
        If no transport has this name.
    """
    known = [*_OTHER_TRANSPORTS, *list_schemes()]
    if transport not in known:
        raise UsageError(f"transport is {transport!r}; expected {', '.join(known)}")
    return transport


def find_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return the rank and the number of ranks.

    Raises
    ------
    UsageError
        If one of them is given without the other, or the rank does not exist.
    """
    if (rank is None) != (world_size is None):
        raise UsageError("rank and world_size belong together; pass both or neither")
    if rank is None or world_size is None:
        rank, world_size = _detect_rank()
    if not 0 <= rank < world_size:
        raise UsageError(f"rank is {rank}; expected 0 to {world_size - 1} for {world_size} ranks")
    return rank, world_size


def _detect_rank() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return _read_number("RANK", 0), _read_number("WORLD_SIZE", 1)


def _read_number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isdecimal():
        raise UsageError(f"the variable {name} is {text!r}; expected a number")
    return int(text)
