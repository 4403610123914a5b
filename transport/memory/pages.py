"""System calls on mapped pages: mapping files, and replacing pages that are in use.

Python's ``mmap`` keeps a descriptor open for each mapping and cannot choose the address.
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
    """Map a file for reading and return the address. The descriptor may be closed then."""
    address = _libc.mmap(None, nbytes, _PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        raise _last_error()
    return int(address)


def unmap(address: int, nbytes: int) -> None:
    """Remove a mapping."""
    _libc.munmap(address, nbytes)


def populate(address: int, nbytes: int) -> None:
    """Enter mapped pages into the page tables at once, which costs far less than one by one.

    Kernels before 5.14 cannot do this; they enter each page when it is first read.
    """
    begin = address // mmap.PAGESIZE * mmap.PAGESIZE
    _libc.madvise(begin, address + nbytes - begin, _MADV_POPULATE_READ)


def view_bytes(address: int, nbytes: int) -> memoryview:
    """Return a view of mapped bytes. It does not keep the mapping alive."""
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")


def find_page_ranges(spans: Iterable[tuple[int, int]], page: int) -> list[tuple[int, int]]:
    """Return the ranges of whole pages that spans touch, merged and in order; all in bytes.

    Examples
    --------
    >>> find_page_ranges([(10, 20), (4096, 1), (20000, 0)], 4096)
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


def replace_with_copy(address: int, nbytes: int) -> None:
    """Replace mapped pages by a private copy at the same addresses.

    Code that reads the pages meanwhile notices nothing. Raises `OSError` if there is no memory for
    the copy. The pages are then unchanged.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    copy = _libc.mmap(None, nbytes, _PROT_READ | _PROT_WRITE, flags, -1, 0)
    if copy == _FAILED:
        raise _last_error()
    ctypes.memmove(copy, address, nbytes)
    _libc.mprotect(copy, nbytes, _PROT_READ)
    moved = _libc.mremap(copy, nbytes, nbytes, _MREMAP_MAYMOVE | _MREMAP_FIXED, address)
    if moved == _FAILED:
        error = _last_error()
        unmap(copy, nbytes)
        raise error


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
