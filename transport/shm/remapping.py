"""Mapping files, and replacing pages by a copy at the same addresses while they are in use.

The module ``mmap`` keeps a descriptor open for each mapping, and cannot map to a place.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable

_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_FAILED = ctypes.c_void_p(-1).value
_PROT_READ, _PROT_WRITE = 1, 2
_MADV_POPULATE_READ = 22
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def map_shared(descriptor: int, nbytes: int) -> int:
    """Map a file for reading; return the address. The descriptor need not stay open.

    Raises
    ------
    OSError
        If it cannot be mapped.
    """
    address = _libc.mmap(None, nbytes, _PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(address)


def unmap(address: int, nbytes: int) -> None:
    """Take a mapping away."""
    _libc.munmap(address, nbytes)


def populate(address: int, nbytes: int) -> None:
    """Enter mapped pages into the page tables, all at once: one by one that takes far longer.

    A kernel that cannot (before 5.14) does it when they are touched.
    """
    begin = address // mmap.PAGESIZE * mmap.PAGESIZE
    _libc.madvise(begin, address + nbytes - begin, _MADV_POPULATE_READ)


def copy_of(address: int, nbytes: int) -> bytes:
    """Return a copy of mapped bytes."""
    return ctypes.string_at(address, nbytes)


def page_ranges(spans: Iterable[tuple[int, int]], page: int) -> list[tuple[int, int]]:
    """Return the ranges of whole pages that spans touch, merged and in order.

    Parameters
    ----------
    spans : iterable of (offset, length)
        In bytes.
    page : int
        The size of a page in bytes.

    Examples
    --------
    >>> page_ranges([(10, 20), (4096, 1), (20000, 0)], 4096)
    [(0, 8192)]
    """
    ranges: list[tuple[int, int]] = []
    for offset, length in sorted(spans):
        if not length:
            continue
        begin, end = offset // page * page, -(-(offset + length) // page) * page
        if ranges and begin <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        else:
            ranges.append((begin, end))
    return ranges


def replace_by_copy(address: int, nbytes: int) -> None:
    """Put a copy of pages in their place; readers of them notice nothing.

    Parameters
    ----------
    address : int
        Where the pages begin; a multiple of the size of a page.
    nbytes : int
        How much, too.

    Raises
    ------
    OSError
        If there is no memory for the copy; the pages are as they were.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    copy = _libc.mmap(None, nbytes, _PROT_READ | _PROT_WRITE, flags, -1, 0)
    if copy == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    ctypes.memmove(copy, address, nbytes)
    _libc.mprotect(copy, nbytes, _PROT_READ)
    moved = _libc.mremap(copy, nbytes, nbytes, _MREMAP_MAYMOVE | _MREMAP_FIXED, address)
    if moved == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
