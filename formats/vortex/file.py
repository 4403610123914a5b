"""Reading ``.vortex`` files: the footer, and the arrays with types that follow from the layouts.

A file begins and ends with ``VTXF``. Its last 8 bytes are a version (u16), the size of the
postscript before them (u16), and the magic bytes. The postscript has the places of the other parts:
the dtype, the layouts and the segments.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ...errors import InvalidDataError, LimitError, ProtocolError
from ..flatbuffer import (
    PARSE_ERRORS,
    find_field,
    find_table,
    find_vector,
    follow,
    read_byte,
    read_root,
    read_string,
)
from .checker import read_parameters
from .dtype import DType, PType, TypeKind, read_dtype
from .message import DEFAULT_LIMITS, MAX_ALIGNMENT_EXPONENT, MAX_NODE_DEPTH, Read, VortexLimits

MAGIC = b"VTXF"
_END = struct.Struct("<HH4s")
_VERSION = 1
_SEGMENT = struct.Struct("<QIBBH")
_U16, _U32, _U64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")
# The slots of fields in the vtables of Postscript, PostscriptSegment, Footer and Layout.
_DTYPE, _LAYOUT, _STATISTICS, _FOOTER = 4, 6, 8, 10
_OFFSET, _LENGTH, _EXPONENT, _COMPRESSION, _ENCRYPTION = 4, 6, 8, 10, 12
_ARRAY_SPECS, _LAYOUT_SPECS, _SEGMENT_SPECS = 4, 6, 8
_ENCODING, _ROW_COUNT, _METADATA, _CHILDREN, _SEGMENTS = 4, 6, 8, 10, 12
_FLAT, _CHUNKED = "vortex.flat", "vortex.chunked"


class Segment(NamedTuple):
    """A part of the file."""

    offset: int
    """Its offset in bytes."""
    length: int
    """Its size in bytes."""
    alignment_exponent: int
    """Its alignment, as a power of two."""


class Layout(NamedTuple):
    """A node of the tree that divides the rows and columns."""

    path: str
    """Its place in the tree, for errors."""
    encoding: str
    """The identifier of the layout."""
    rows: int
    """The number of rows."""
    metadata: bytes
    """The parameters of the layout."""
    segments: tuple[int, ...]
    """The numbers of its segments."""
    children: tuple[Layout, ...]
    """Its children."""

    @property
    def is_flat(self) -> bool:
        """Whether its only segment is one array, with the body of an array message."""
        return self.encoding == _FLAT and not self.metadata

    def walk(self) -> Iterator[Layout]:
        """Yield this layout and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


class FileFooter(NamedTuple):
    """The parts of a file after its segments."""

    dtype: DType | None
    """The type of the rows; None if the file leaves it to its readers."""
    encodings: tuple[str, ...]
    """The identifiers of the encodings of arrays."""
    segments: list[Segment]
    """The segments."""
    root: Layout
    """The root of the layouts."""


def read_file_footer(read: Read, size: int, limits: VortexLimits = DEFAULT_LIMITS) -> FileFooter:
    """Read and check the footer of a file of `size` bytes.

    Raises `InvalidDataError` or `LimitError`, which name the part.
    """
    if size < len(MAGIC) + _END.size or read(0, len(MAGIC)) != MAGIC:
        raise InvalidDataError(f"the file does not begin with {MAGIC!r}")
    version, length, magic = _END.unpack(read(size - _END.size, _END.size))
    if magic != MAGIC:
        raise InvalidDataError(
            f"the Vortex file is truncated: it has {magic!r} at byte {size - len(MAGIC)}; expected "
            f"{MAGIC!r}"
        )
    if version != _VERSION:
        raise InvalidDataError(f"the version of the file is {version}; expected {_VERSION}")
    end = size - _END.size
    if length > end - len(MAGIC):
        raise InvalidDataError(f"the postscript has {length} bytes; the file has {size}")
    try:
        return _read(read, end, read(end - length, length), limits)
    except PARSE_ERRORS:
        raise InvalidDataError(
            "the footer is malformed: a part of it is not a FlatBuffer"
        ) from None
    except UnicodeDecodeError:
        raise InvalidDataError("an identifier in the footer is not valid UTF-8") from None


def _read(read: Read, end: int, postscript: bytes, limits: VortexLimits) -> FileFooter:
    root = read_root(postscript)
    parts: dict[str, bytes | None] = {}
    places = {"dtype": _DTYPE, "layout": _LAYOUT, "statistics": _STATISTICS, "footer": _FOOTER}
    for name, slot in places.items():
        place = find_table(postscript, root, slot)
        parts[name] = _read_part(read, end, postscript, place, name, limits) if place else None
    layout, footer, dtype = parts["layout"], parts["footer"], parts["dtype"]
    if layout is None or footer is None:
        raise InvalidDataError("the postscript has no place of the layout or of the footer")
    table = read_root(footer)
    segments = _read_segments(footer, table, end)
    layouts = _LayoutReader(layout, _read_ids(footer, table, _LAYOUT_SPECS), len(segments), limits)
    return FileFooter(
        None if dtype is None else read_dtype(dtype, limits),
        _read_ids(footer, table, _ARRAY_SPECS),
        segments,
        layouts.read(read_root(layout), 1, "root"),
    )


def _read_part(
    read: Read, end: int, postscript: bytes, place: int, name: str, limits: VortexLimits
) -> bytes:
    position = find_field(postscript, place, _OFFSET)
    offset = _U64.unpack_from(postscript, position)[0] if position else 0
    position = find_field(postscript, place, _LENGTH)
    length = _U32.unpack_from(postscript, position)[0] if position else 0
    if offset + length > end:
        raise InvalidDataError(
            f"the {name} has {length} bytes at byte {offset}, outside of the {end} bytes before "
            "the end of the file"
        )
    if length > limits.metadata_bytes:
        raise LimitError(f"the {name} has {length} bytes; the limit is {limits.metadata_bytes}")
    if read_byte(postscript, place, _EXPONENT) > MAX_ALIGNMENT_EXPONENT:
        raise InvalidDataError(f"the alignment of the {name} is too large")
    if find_field(postscript, place, _COMPRESSION) or find_field(postscript, place, _ENCRYPTION):
        raise InvalidDataError(f"the {name} is compressed or encrypted, which is not supported")
    return read(offset, length)


def _read_ids(footer: bytes, table: int, slot: int) -> tuple[str, ...]:
    start, count = find_vector(footer, table, slot, 4)
    found = [read_string(footer, follow(footer, start + 4 * index), 4) for index in range(count)]
    return tuple((text or b"").decode() for text in found)


def _read_segments(footer: bytes, table: int, end: int) -> list[Segment]:
    start, count = find_vector(footer, table, _SEGMENT_SPECS, _SEGMENT.size)
    segments: list[Segment] = []
    specs = _SEGMENT.iter_unpack(footer[start : start + count * _SEGMENT.size])
    for number, (offset, length, exponent, compression, encryption) in enumerate(specs):
        if offset + length > end:
            raise InvalidDataError(
                f"segment {number} has {length} bytes at byte {offset}, outside of the {end} bytes "
                "before the end of the file"
            )
        if exponent > MAX_ALIGNMENT_EXPONENT or offset % (1 << exponent):
            raise InvalidDataError(
                f"segment {number} at byte {offset} has the alignment exponent {exponent}"
            )
        if compression or encryption:
            raise InvalidDataError(
                f"segment {number} is compressed or encrypted, which is not supported"
            )
        segments.append(Segment(offset, length, exponent))
    return segments


class _LayoutReader:
    """Reads the layouts of one file, with a budget."""

    def __init__(
        self, data: bytes, encodings: tuple[str, ...], segments: int, limits: VortexLimits
    ) -> None:
        self._data = data
        self._encodings = encodings
        self._segments = segments
        self._limits = limits
        self._layouts = limits.nodes
        self._bytes = len(data)

    def read(self, table: int, depth: int, path: str) -> Layout:
        data, limits = self._data, self._limits
        self._layouts -= 1
        if self._layouts < 0 or depth > MAX_NODE_DEPTH:
            raise LimitError(
                f"the file has more than {limits.nodes} layouts, or nests more than "
                f"{MAX_NODE_DEPTH} of them"
            )
        position = find_field(data, table, _ENCODING)
        number = _U16.unpack_from(data, position)[0] if position else 0
        if number >= len(self._encodings):
            raise InvalidDataError(
                f"the field encoding of layout {path} is {number}; the footer has "
                f"{len(self._encodings)} encodings of layouts"
            )
        position = find_field(data, table, _ROW_COUNT)
        rows = _U64.unpack_from(data, position)[0] if position else 0
        numbers = self._read_bytes(table, _SEGMENTS, _U32.size)
        segments = tuple(segment for (segment,) in _U32.iter_unpack(numbers))
        if segments and max(segments) >= self._segments:
            raise InvalidDataError(
                f"layout {path} refers to segment {max(segments)}; the footer has {self._segments}"
            )
        metadata = self._read_bytes(table, _METADATA, 1)
        start, count = find_vector(data, table, _CHILDREN, 4)
        children = tuple(
            self.read(follow(data, start + 4 * index), depth + 1, f"{path}.{index}")
            for index in range(count)
        )
        layout = Layout(path, self._encodings[number], rows, metadata, segments, children)
        _check_layout(layout)
        return layout

    def _read_bytes(self, table: int, slot: int, item_bytes: int) -> bytes:
        start, count = find_vector(self._data, table, slot, item_bytes)
        nbytes = count * item_bytes
        self._bytes -= nbytes
        if self._bytes < 0:
            raise IndexError
        return self._data[start : start + nbytes]


def _check_layout(layout: Layout) -> None:
    """Check the numbers of rows and segments that follow from the encoding."""
    path = layout.path
    if layout.encoding == _FLAT and len(layout.segments) != 1:
        raise InvalidDataError(
            f"layout {path} ({_FLAT}) has {len(layout.segments)} segments; expected 1"
        )
    if layout.encoding == _CHUNKED:
        # The first child may have statistics of the others.
        rows = sum(child.rows for child in layout.children)
        if rows != layout.rows:
            raise InvalidDataError(
                f"layout {path} ({_CHUNKED}) has {layout.rows} rows; its children have {rows}"
            )


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
        parameters = read_parameters(layout.metadata)
    except ProtocolError:
        return None
    number, nullable = parameters.get(1, 0), parameters.get(2, 0)
    if not isinstance(number, int) or number > PType.I64:
        return None
    return DType(TypeKind.PRIMITIVE, bool(nullable), PType(number))
