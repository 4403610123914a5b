"""Filters by bounding box: rows by their boxes, row groups and shards by their statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import splitarrow
from helpers.parquet_files import edit_schema, footer_of, with_footer, write_parquet
from helpers.wkb import write_wkb
from splitarrow import geo
from splitarrow.errors import DatasetError, RemoteError, UsageError
from splitarrow.formats.parquet.footer import Footer
from splitarrow.formats.parquet.geo.crs import extension_metadata
from splitarrow.formats.parquet.logical_types import EDGES, Kind, LogicalType
from splitarrow.formats.parquet.schema import annotate
from splitarrow.formats.parquet.thrift import CompactReader, Type, Value, encode_struct
from splitarrow.publication.version_store import VersionStore

SIDE = 20
GEOMETRY = pa.field(
    "geom", pa.binary(), metadata=extension_metadata(LogicalType(Kind.GEOMETRY), {})
)
POINTS = [(x, y) for x in range(SIDE) for y in range(SIDE)]
TABLE = pa.Table.from_arrays(
    [
        pa.array(range(len(POINTS)), pa.int64()),
        pa.array([None if point == (3, 4) else write_wkb(1, point) for point in POINTS]),
    ],
    schema=pa.schema([pa.field("n", pa.int64()), GEOMETRY]),
)


def make_file(statistics: Any = None, **annotation: Any) -> bytes:
    """Return a file with a row group for each X, and a box in the statistics of each.

    Parameters
    ----------
    statistics : callable, optional
        Returns the box of a row group by its X: xmin, xmax, ymin, ymax. None leaves it out.
    **annotation
        The logical type of the column. Default: a GEOMETRY.
    """
    plain = TABLE.cast(pa.schema([pa.field("n", pa.int64()), pa.field("geom", pa.binary())]))
    file = write_parquet(plain, row_group_size=SIDE)
    fields: dict[str, Any] = {"kind": Kind.GEOMETRY, **annotation}
    logical = LogicalType(**fields)
    file = edit_schema(file, {"geom": lambda element: annotate(element, logical)})
    footer = CompactReader(footer_of(file)).read_struct()
    for x, group in enumerate(footer[4].content.items):
        box = (x, x, 0, SIDE - 1) if statistics is None else statistics(x)
        if box is not None:
            set_box(group, 1, box)
    return with_footer(file, encode_struct(footer))


def set_box(group: Any, chunk: int, box: tuple[float, float, float, float]) -> None:
    """Set the box in the statistics of a column chunk: xmin, xmax, ymin, ymax."""
    sides = {index + 1: Value(Type.DOUBLE, float(side)) for index, side in enumerate(box)}
    metadata = group[1].content.items[chunk][3].content
    metadata[17] = Value(Type.STRUCT, {1: Value(Type.STRUCT, sides)})


def expected(box: tuple[float, float, float, float]) -> list[int]:
    xmin, ymin, xmax, ymax = box

    def has(x: int, y: int) -> bool:
        across = x >= xmin or x <= xmax if xmin > xmax else xmin <= x <= xmax
        return across and ymin <= y <= ymax

    return [n for n, (x, y) in enumerate(POINTS) if has(x, y) and (x, y) != (3, 4)]


BOXES = [(2, 3, 5, 6), (2.5, 3, 2.6, 6), (19, 19, 99, 99), (18, 0, 1, 5), (3, 4, 3, 4)]


@pytest.fixture
def servers(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "grid.parquet").write_bytes(make_file())
    store = VersionStore(str(tmp_path / "store"))
    shards = [
        store.write_shard("job", f"{x}", part.schema, part.to_batches(), ordinal=x)
        for x in range(SIDE)
        for part in [TABLE.slice(x * SIDE, SIDE)]
    ]
    store.commit("job", TABLE.schema, shards, append=False)
    return {"file": tmp_path / "grid.parquet", "table": TABLE, "store": tmp_path / "store"}


@pytest.mark.parametrize("name", ["file", "table", "store"])
def test_rows_are_selected_exactly_by_their_boxes(servers, name):
    with (
        splitarrow.serve({"grid": servers[name]}, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(server.control_uri or "") as client,
    ):
        for box in BOXES:
            with client.read("grid", filter=geo.intersects("geom", box)) as stream:
                table = stream.read_all()
            assert table["n"].to_pylist() == expected(box)
            assert table.schema.field("geom").metadata == GEOMETRY.metadata
        both = geo.intersects(None, (2, 3, 5, 6)) & (pc.field("n") > 60)
        with client.read("grid", columns=["n"], filter=both, limit=3) as stream:
            rows = [n for n in expected((2, 3, 5, 6)) if n > 60][:3]
            assert stream.read_all().to_pydict() == {"n": rows}
        counts = client.count_rows("grid", filter=geo.intersects("geom", (2, 3, 5, 6)))
        assert sum(map(sum, counts.values())) == len(expected((2, 3, 5, 6)))
        for wrong, problem in (
            (geo.intersects("n", (0, 0, 1, 1)), "'n' is not geospatial"),
            (geo.intersects("x", (0, 0, 1, 1)), "'x', which the dataset lacks"),
        ):
            with pytest.raises(UsageError, match=problem):
                client.read("grid", filter=wrong)


def read_groups(path: Path, box: Any) -> tuple[list[int], list[int]]:
    """Return the row groups that are read for a box, and the rows that pass."""
    from helpers.catalog import read_dataset
    from splitarrow.filters import encode_filter
    from splitarrow.server.catalog.files import parquet
    from splitarrow.server.catalog.files.file_types import open_file

    dataset = open_file(path)
    text = encode_filter(geo.intersects("geom", box), dataset.schema)
    chosen: list[int] = []
    former: Any = getattr(parquet, "select_row_groups")  # noqa: B009
    from splitarrow.server.catalog.files import parquet

    def record(*arguments: Any) -> list[int]:
        groups = former(*arguments)
        chosen.extend(groups)
        return groups

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "select_row_groups", record)
        rows: Any = read_dataset(dataset, filter=text).table["n"].to_pylist()
    return chosen, rows


def test_row_groups_outside_of_the_box_are_not_read(tmp_path):
    path = tmp_path / "grid.parquet"
    path.write_bytes(make_file())
    assert read_groups(path, (2, 3, 5, 6)) == ([2, 3, 4, 5], expected((2, 3, 5, 6)))
    assert read_groups(path, (18, 0, 1, 5)) == ([0, 1, 18, 19], expected((18, 0, 1, 5)))
    assert read_groups(path, (0, 50, 9, 60)) == ([], [])


def test_the_box_is_that_of_the_column_and_not_of_a_field_before_it(tmp_path):
    far = pa.array([write_wkb(1, (100 + x, 50)) for x, _ in POINTS])
    structs: Any = pa.StructArray.from_arrays([TABLE["n"].combine_chunks(), far], ["a", "g"])
    columns: dict[str, Any] = {"n": TABLE["n"], "s": structs, "geom": TABLE["geom"]}
    plain = pa.table(columns)
    logical = LogicalType(Kind.GEOMETRY)
    file = edit_schema(
        write_parquet(plain, row_group_size=SIDE),
        {path: lambda element: annotate(element, logical) for path in ("geom", "s.g")},
    )
    footer = CompactReader(footer_of(file)).read_struct()
    for x, group in enumerate(footer[4].content.items):
        # The column `s` has the chunks 1 and 2, so "geom", the column 2, has the chunk 3.
        set_box(group, 2, (100 + x, 100 + x, 50, 50))
        set_box(group, 3, (x, x, 0, SIDE - 1))
    path = tmp_path / "grid.parquet"
    path.write_bytes(with_footer(file, encode_struct(footer)))
    assert read_groups(path, (2, 3, 5, 6)) == ([2, 3, 4, 5], expected((2, 3, 5, 6)))


@pytest.mark.parametrize(
    "statistics",
    [
        lambda x: None,
        lambda x: (float("nan"), x, 0, SIDE),
        lambda x: (x, x, SIDE, 0),
        lambda x: (x, float("inf"), 0, SIDE),
    ],
)
def test_missing_and_invalid_statistics_rule_nothing_out(tmp_path, statistics):
    path = tmp_path / "grid.parquet"
    path.write_bytes(make_file(statistics))
    groups, rows = read_groups(path, (2, 3, 2, 6))
    assert rows == expected((2, 3, 2, 6))
    assert groups == list(range(SIDE))


def test_boxes_beyond_the_earth_rule_out_nothing_of_a_geography(tmp_path):
    path = tmp_path / "grid.parquet"
    path.write_bytes(make_file(lambda x: (x + 500, x + 500, 0, SIDE), kind=Kind.GEOGRAPHY))
    assert read_groups(path, (2, 3, 2, 6)) == (list(range(SIDE)), expected((2, 3, 2, 6)))
    path.write_bytes(make_file(lambda x: (179, -179, 0, SIDE), kind=Kind.GEOGRAPHY))
    assert read_groups(path, (2, 3, 2, 6))[0] == []
    assert len(read_groups(path, (-180, 3, -179.5, 6))[0]) == SIDE


def test_forbidden_statistics_of_wkb_are_ignored(tmp_path):
    path = tmp_path / "grid.parquet"
    path.write_bytes(make_file(lambda x: None))
    assert pq.read_metadata(path).row_group(0).column(0).is_stats_set
    assert expected((2, 3, 2, 6)) == read_groups(path, (2, 3, 2, 6))[1]


def test_invalid_values_are_an_error_of_the_dataset(tmp_path):
    table = pa.Table.from_arrays(
        [pa.array([write_wkb(1, (0, 0)), b"\1\1"])], schema=pa.schema([GEOMETRY])
    )
    with (
        splitarrow.serve({"bad": table}, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(server.control_uri or "") as client,
        pytest.raises((DatasetError, RemoteError), match="invalid WKB in value 1"),
        client.read("bad", filter=geo.intersects("geom", (0, 0, 1, 1))) as stream,
    ):
        stream.read_all()


@pytest.mark.parametrize(
    ("crs", "key_values", "values"),
    [
        (None, {}, '{"crs": "OGC:CRS84", "crs_type": "authority_code"}'),
        ("srid:5070", {}, '{"crs": "5070", "crs_type": "srid"}'),
        ("srid:0", {}, "{}"),
        ("EPSG:4326", {}, '{"crs": "EPSG:4326", "crs_type": "authority_code"}'),
        ("any text é", {}, '{"crs": "any text é"}'),
        ("", {}, '{"crs": ""}'),
        ("projjson:k", {b"k": b'{"id": 1}'}, '{"crs": {"id": 1}, "crs_type": "projjson"}'),
        ("projjson:lost", {}, '{"crs": "projjson:lost"}'),
        ("projjson:k", {b"k": b"no json"}, '{"crs": "projjson:k"}'),
        ("srid:x", {}, '{"crs": "srid:x"}'),
    ],
)
@pytest.mark.parametrize("edges", [None, *EDGES])
def test_the_crs_and_the_edges_are_in_the_metadata_of_the_field(
    tmp_path, crs, key_values, values, edges
):
    from splitarrow.server.catalog.files.file_types import open_file

    kind = Kind.GEOMETRY if edges is None else Kind.GEOGRAPHY
    path = tmp_path / "grid.parquet"
    file = make_file(kind=kind, crs=crs, edges=edges)
    footer = CompactReader(footer_of(file)).read_struct()
    pairs = [
        {1: Value(Type.BINARY, key), 2: Value(Type.BINARY, value)}
        for key, value in key_values.items()
    ]
    if pairs:
        from splitarrow.formats.parquet.thrift import ThriftList

        footer[5] = Value(Type.LIST, ThriftList(Type.STRUCT, list(pairs)))
    path.write_bytes(with_footer(file, encode_struct(footer)))
    field = open_file(path).schema.field("geom")
    metadata: dict[bytes, bytes] = field.metadata or {}
    assert field.type == pa.binary()
    assert metadata[b"ARROW:extension:name"] == b"geoarrow.wkb"
    text = values
    if edges is not None:
        end = f'"edges": "{edges}"}}'
        text = values[:-1] + ("" if values == "{}" else ", ") + end
    assert metadata[b"ARROW:extension:metadata"].decode() == text


def test_bounds_of_a_column():
    boxes = geo.bounds(TABLE["geom"])
    assert boxes[5].as_py() == {"xmin": 0, "ymin": 5, "xmax": 0, "ymax": 5}
    assert boxes[3 * SIDE + 4].as_py() is None
    assert np.nanmax(np.asarray(boxes.field("xmax"))) == SIDE - 1


@pytest.mark.parametrize(
    "box", [(0, 1, 2), (0, 2, 1, 1), (0, 0, float("nan"), 1), ("a", 0, 1, 1), None]
)
def test_a_box_has_four_numbers(box):
    with pytest.raises(UsageError, match="box"):
        geo.intersects("geom", box)


def test_a_malformed_filter_is_refused():
    import base64

    from helpers.catalog import read_dataset
    from splitarrow.errors import InvalidRequestError
    from splitarrow.server.catalog.tables import TableDataset

    dataset = TableDataset(TABLE)
    for text in (
        b"{",
        b"{}",
        b'{"boxes": []}',
        b'{"boxes": [["geom", [0, 0, 1]]]}',
        b'{"boxes": [["geom", [0, 0, 1, "1"]]]}',
        b'{"boxes": [["geom", [0, 1, 0, 0]]]}',
        b'{"boxes": [["lost", [0, 0, 1, 1]]]}',
        b'{"boxes": [["n", [0, 0, 1, 1]]]}',
        b'{"boxes": [["geom", [0, 0, 1, 1]]], "x": 1}',
        b'{"boxes": [["geom", [0, 0, 1, 1]]], "filter": 1}',
        b'{"boxes": %s}' % (b"[" * 5000),
    ):
        with pytest.raises(InvalidRequestError):
            read_dataset(dataset, filter=base64.urlsafe_b64encode(text).decode().rstrip("="))


def test_the_footer_of_the_test_file_is_valid():
    assert Footer.parse(footer_of(make_file())).root.children[1].kind is Kind.GEOMETRY
