"""The metadata of geospatial columns: coordinate reference systems and edges.

In Arrow, a geospatial column is binary, with the extension ``geoarrow.wkb`` in the metadata of its
field. No type of that name is registered, so that no imported library can change the column.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from itertools import count
from typing import Any

import pyarrow as pa

from ....errors import InvalidDataError
from ..logical_types import EDGES, Kind, LogicalType
from ..schema import Node

NAME_KEY = b"ARROW:extension:name"
METADATA_KEY = b"ARROW:extension:metadata"
EXTENSION = b"geoarrow.wkb"
CRS_KEY = b"PARQUET:crs"
"""The key in field metadata of ``projjson:KEY``, for a CRS from the metadata of the file."""
DEFAULT_CRS = "OGC:CRS84"
"""The CRS of a column that states none."""
NO_CRS = "srid:0"
"""The CRS of a column whose CRS is unknown, which Parquet has no other way to state."""
_SRID = re.compile(r"srid:([0-9]+)", re.ASCII)
_PROJJSON = "projjson:"
_AUTHORITY_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*:[A-Za-z0-9_.-]+", re.ASCII)
_ARROW_SCHEMA = b"\x0cARROW:schema\x18"
"""The key of the Arrow schema in a footer, between its length and the type of its value."""
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{64,}={0,2}")
_NOT_CODES = ("srid", "projjson")


def extension_metadata(
    logical: LogicalType, key_values: Mapping[bytes, bytes]
) -> dict[bytes, bytes]:
    """Return the field metadata of a geospatial column ("CRS Customization").

    A CRS ``projjson:KEY`` is read from the key-value metadata of the file. If the key is missing or
    is not JSON, the CRS stays this text.

    Examples
    --------
    >>> metadata = extension_metadata(LogicalType(Kind.GEOMETRY, crs="srid:5070"), {})
    >>> metadata[b"ARROW:extension:metadata"]
    b'{"crs": "5070", "crs_type": "srid"}'
    """
    values = _read_crs(DEFAULT_CRS if logical.crs is None else logical.crs, key_values)
    if logical.kind is Kind.GEOGRAPHY:
        values["edges"] = logical.edges or EDGES[0]
    text = json.dumps(values, ensure_ascii=False)
    metadata = {NAME_KEY: EXTENSION, METADATA_KEY: text.encode()}
    if values.get("crs_type") == "projjson" and logical.crs is not None:
        metadata[CRS_KEY] = logical.crs.encode()
    return metadata


def find_projjson(root: Node, key_values: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the key-value metadata of a file to which its geospatial columns refer."""
    found: dict[bytes, bytes] = {}
    nodes = [root]
    while nodes:
        node = nodes.pop()
        nodes.extend(node.children)
        if node.logical is not None and (node.logical.crs or "").startswith(_PROJJSON):
            key = (node.logical.crs or "").removeprefix(_PROJJSON).encode()
            if key in key_values:
                found[key] = key_values[key]
    return found


def is_geospatial(column: pa.Field[Any]) -> bool:
    """Return whether a column of Arrow is geospatial: of the extension ``geoarrow.wkb``."""
    data_type: Any = column.type
    if isinstance(data_type, pa.BaseExtensionType):
        return data_type.extension_name.encode() == EXTENSION
    return (column.metadata or {}).get(NAME_KEY) == EXTENSION and is_binary(data_type)


def is_binary(data_type: Any) -> bool:
    """Return whether a type holds byte strings of any length."""
    return data_type in (pa.binary(), pa.large_binary(), pa.binary_view())


def read_metadata(column: pa.Field[Any]) -> dict[str, Any]:
    """Return the values of a geospatial column: ``crs``, ``crs_type`` and ``edges``, if present.

    Raises `InvalidDataError` if they are not a JSON object, or name unknown edges.
    """
    data_type: Any = column.type
    if isinstance(data_type, pa.ExtensionType):
        text: bytes = data_type.__arrow_ext_serialize__()
    else:
        text = (column.metadata or {}).get(METADATA_KEY, b"")
    try:
        values: Any = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InvalidDataError(f"the metadata of the column {column.name!r} is not a JSON object")
    edges: Any = values.get("edges")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if edges not in (None, "planar", *EDGES):
        raise InvalidDataError(
            f"the column {column.name!r} has the edges {edges!r}; expected one of "
            f"{', '.join(EDGES)}"
        )
    return values  # pyright: ignore[reportUnknownVariableType]


def make_logical_type(
    column: pa.Field[Any], key_values: Mapping[bytes, bytes]
) -> tuple[LogicalType, dict[bytes, bytes]]:
    """Return the logical type to write for a geospatial column, and its key-value metadata.

    `key_values` is the metadata that the file has already. Raises `InvalidDataError` if the
    metadata of the column is malformed.
    """
    values = read_metadata(column)
    edges: str | None = values.get("edges")
    crs, added = _write_crs(values.get("crs"), values.get("crs_type"), column, key_values)
    if edges in (None, "planar"):
        return LogicalType(Kind.GEOMETRY, crs=crs), added
    return LogicalType(Kind.GEOGRAPHY, crs=crs, edges=edges), added


def _read_crs(crs: str, key_values: Mapping[bytes, bytes]) -> dict[str, Any]:
    if crs == NO_CRS:
        return {}
    if match := _SRID.fullmatch(crs):
        return {"crs": match[1], "crs_type": "srid"}
    if crs.startswith(_PROJJSON):
        try:
            resolved: Any = json.loads(key_values[crs.removeprefix(_PROJJSON).encode()])
        except (KeyError, ValueError, RecursionError):
            return {"crs": crs}
        return {"crs": resolved, "crs_type": "projjson"}
    if _is_code(crs):
        return {"crs": crs, "crs_type": "authority_code"}
    return {"crs": crs}


def _is_code(crs: str) -> bool:
    prefix = crs.partition(":")[0].lower()
    return prefix not in _NOT_CODES and _AUTHORITY_CODE.fullmatch(crs) is not None


def _write_crs(
    crs: Any, kind: Any, column: pa.Field[Any], key_values: Mapping[bytes, bytes]
) -> tuple[str | None, dict[bytes, bytes]]:
    if crs is None:
        return NO_CRS, {}
    if isinstance(crs, str):
        if crs == DEFAULT_CRS:
            return None, {}
        return (f"srid:{crs}" if kind == "srid" else crs), {}
    former = (column.metadata or {}).get(CRS_KEY, b"").decode(errors="replace")
    first = former.removeprefix(_PROJJSON) or f"projjson_{column.name}"
    for number in count(1):
        key = first if number == 1 else f"{first}_{number}"
        if key.encode() not in key_values:
            return f"{_PROJJSON}{key}", {key.encode(): json.dumps(crs, ensure_ascii=False).encode()}
        try:
            if json.loads(key_values[key.encode()]) == crs:
                return f"{_PROJJSON}{key}", {}
        except (ValueError, RecursionError):
            pass  # other metadata
    raise AssertionError("the numbers never end")


def hide_extension(footer: bytes) -> bytes:
    """Return a footer whose stored Arrow schema does not name the extension ``geoarrow.wkb``.

    Otherwise, pyarrow gives the column to whatever type an imported library has registered.
    """
    begin = footer.find(_ARROW_SCHEMA)
    match = None if begin < 0 else _BASE64.search(footer, begin + len(_ARROW_SCHEMA))
    if match is None:
        return footer
    try:
        schema = base64.b64decode(match[0], validate=True)
    except ValueError:
        return footer
    hidden = base64.b64encode(schema.replace(EXTENSION, EXTENSION.replace(b".", b"-")))
    return footer[: match.start()] + hidden + footer[match.end() :]
