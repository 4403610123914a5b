"""Well-known binary: writing it, and a plain reader of one value at a time to compare with."""

from __future__ import annotations

import math
import struct
from typing import Any

DIMENSIONS = (2, 3, 3, 4)


def write_wkb(kind: int, content: Any, *, flavor: int = 0, order: str = "<") -> bytes:
    """Return a geometry: a point, points, rings of points, or a list of geometries in bytes.

    Parameters
    ----------
    kind : int
        The type from 1 to 7.
    content : tuple or list
        A point, points, rings, or members in WKB.
    flavor : int
        Which of Z and M a point has: 0 none, 1 Z, 2 M, 3 both.
    order : {"<", ">"}
        The byte order.
    """

    def points(items: Any) -> bytes:
        return struct.pack(f"{order}I", len(items)) + b"".join(map(point, items))

    def point(item: Any) -> bytes:
        return struct.pack(f"{order}{len(item)}d", *item)

    head = struct.pack(f"{order}BI", order == "<", flavor * 1000 + kind)
    if kind == 1:
        return head + point(content)
    if kind == 2:
        return head + points(content)
    members = map(points, content) if kind == 3 else content
    return head + struct.pack(f"{order}I", len(content)) + b"".join(members)


class ReferenceReader:
    """Reads one geometry, recursively. Raises `ValueError` or `struct.error` if it is invalid."""

    def __init__(self, data: bytes, max_depth: int) -> None:
        self.data = data
        self.max_depth = max_depth
        self.position = 0
        self.bounds: dict[int, tuple[float, float]] = {}
        """The smallest and the largest X (0), Y (1), Z (2) and M (3)."""

    def read(self) -> int:
        """Read the whole value, and return its type code."""
        code = self._geometry(0, None, None)
        if self.position != len(self.data):
            raise ValueError("trailing bytes")
        return code

    def _take(self, form: str) -> Any:
        values = struct.unpack_from(form, self.data, self.position)
        self.position += struct.calcsize(form)
        return values

    def _geometry(self, depth: int, kind: int | None, outer: int | None) -> int:
        (byte,) = self._take("<B")
        if byte > 1:
            raise ValueError("byte order")
        order = "<" if byte else ">"
        (code,) = self._take(f"{order}I")
        flavor, own = divmod(code, 1000)
        if flavor > 3 or not 1 <= own <= 7 or kind not in (None, own):
            raise ValueError("type")
        if outer not in (None, flavor):
            raise ValueError("dimensions")
        if own == 1:
            self._points(order, flavor, 1)
        elif own == 2:
            self._points(order, flavor, *self._take(f"{order}I"))
        else:
            if depth + 1 >= self.max_depth:
                raise ValueError("depth")
            (count,) = self._take(f"{order}I")
            if count > len(self.data):
                raise ValueError("count")
            for _ in range(count):
                if own == 3:
                    self._points(order, flavor, *self._take(f"{order}I"))
                else:
                    self._geometry(depth + 1, None if own == 7 else own - 3, flavor)
        return code

    def _points(self, order: str, flavor: int, count: int) -> None:
        size = DIMENSIONS[flavor]
        if count * size * 8 > len(self.data) - self.position:
            raise ValueError("points")
        names = {0: (0, 1), 1: (0, 1, 2), 2: (0, 1, 3), 3: (0, 1, 2, 3)}[flavor]
        for _ in range(count):
            for name, value in zip(names, self._take(f"{order}{size}d"), strict=True):
                if not math.isnan(value):
                    low, high = self.bounds.get(name, (value, value))
                    self.bounds[name] = (min(low, value), max(high, value))
