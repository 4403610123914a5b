"""The arrays of a ``.vortex`` file, with the types that follow from its layouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .dtype import DType, PType, TypeKind
from .file_footer import FileFooter, Layout, Segment
from .protobuf import read_fields


class FileArray(NamedTuple):
    """One array of a file."""

    layout: Layout
    """Its layout, which has the number of its rows."""
    segment: Segment
    """Its place in the file."""
    dtype: DType | None
    """Its type; None if the layouts do not determine it, as that of statistics."""


def list_arrays(footer: FileFooter) -> Iterator[FileArray]:
    """Yield the arrays that have a segment each, in the order of the layouts."""
    stack = [(footer.root, footer.dtype)]
    while stack:
        layout, dtype = stack.pop()
        if layout.is_flat:
            yield FileArray(layout, footer.segments[layout.segments[0]], dtype)
        types = _list_types(layout, dtype)
        stack += reversed(list(zip(layout.children, types, strict=True)))


def _list_types(layout: Layout, dtype: DType | None) -> list[DType | None]:
    """Return the types of the children of a layout."""
    unknown: list[DType | None] = [None] * len(layout.children)
    if dtype is None or not unknown:
        return unknown
    match layout.encoding:
        case "vortex.chunked" if not layout.metadata:
            return [dtype] * len(unknown)
        case "vortex.zoned" | "vortex.stats":
            return [dtype, *unknown[1:]]
        case "vortex.struct" if dtype.kind is TypeKind.STRUCT:
            validity = [DType(TypeKind.BOOL)] * (len(unknown) - len(dtype.children))
            types: list[DType | None] = [*validity, *dtype.children]
            return types if len(types) == len(unknown) and len(validity) < 2 else unknown
        case "vortex.dict" if len(unknown) == 2:
            return [dtype, _find_code_type(layout)]
        case _:
            return unknown


def _find_code_type(layout: Layout) -> DType | None:
    """Return the type of the codes of a dictionary."""
    try:
        fields = read_fields(layout.metadata)
    except ValueError:
        return None
    number, nullable = fields.get(1, [0])[-1], fields.get(2, [0])[-1]
    if not isinstance(number, int) or number > PType.I64:
        return None
    return DType(TypeKind.PRIMITIVE, bool(nullable), PType(number))
