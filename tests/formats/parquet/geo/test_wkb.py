"""Well-known binary: every valid value gets its box, and every invalid one an error."""

from __future__ import annotations

import contextlib
import math
import random
import re
import struct
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers.wkb import ReferenceReader, write_wkb
from splitarrow.errors import InvalidDataError
from splitarrow.formats.parquet.geo import boxes as boxes_module
from splitarrow.formats.parquet.geo import wkb as wkb_module
from splitarrow.formats.parquet.geo.boxes import Box, BoxTracker, bound_rows
from splitarrow.formats.parquet.geo.wkb import MAX_DEPTH, M, Z, parse_wkb

NAN = math.nan


def make_geometry(rng: random.Random, kind: int, flavor: int, depth: int = 0) -> bytes:
    order = rng.choice("<>")

    def point() -> tuple[float, ...]:
        size = (2, 3, 3, 4)[flavor]
        return tuple(rng.choice((rng.uniform(-9, 9), NAN, 0.0, 1e300)) for _ in range(size))

    def points() -> list[Any]:
        return [point() for _ in range(rng.randrange(5))]

    content: Any
    if kind == 1:
        content = point()
    elif kind == 2:
        content = points()
    elif kind == 3:
        content = [points() for _ in range(rng.randrange(4))]
    else:
        kinds = [kind - 3] if kind < 7 else [1, 2, 3, 4, 5, 6] + [7] * (depth < 3)
        count = rng.randrange(4)
        content = [make_geometry(rng, rng.choice(kinds), flavor, depth + 1) for _ in range(count)]
    return write_wkb(kind, content, flavor=flavor, order=order)


def make_geometries(seed: int, count: int) -> list[bytes]:
    rng = random.Random(seed)
    return [make_geometry(rng, rng.randint(1, 7), rng.randrange(4)) for _ in range(count)]


def expected_sides(value: bytes) -> list[float]:
    reader = ReferenceReader(value, MAX_DEPTH)
    reader.read()
    if 0 not in reader.bounds or 1 not in reader.bounds:
        return [NAN] * 4
    (xmin, xmax), (ymin, ymax) = reader.bounds[0], reader.bounds[1]
    return [xmin, ymin, xmax, ymax]


def test_boxes_are_those_of_a_plain_reader():
    values = make_geometries(1, 200)
    for data_type in (pa.binary(), pa.large_binary(), pa.binary_view()):
        array = pa.array([None, *values, None], data_type)
        boxes = bound_rows(array.slice(1, 200))
        np.testing.assert_array_equal(boxes.sides, [expected_sides(each) for each in values])
    codes = [ReferenceReader(each, MAX_DEPTH).read() for each in values]
    assert boxes.codes.tolist() == codes
    assert {code % 1000 for code in codes} == set(range(1, 8))
    readers = [ReferenceReader(each, MAX_DEPTH) for each in values]
    for reader in readers:
        reader.read()
    for dimension in (Z, M):
        known = [reader.bounds[dimension] for reader in readers if dimension in reader.bounds]
        expected = (min(low for low, _ in known), max(high for _, high in known))
        assert boxes.extras[dimension] == expected


def test_a_value_of_many_parts_is_read_in_time():
    many = write_wkb(4, [write_wkb(1, (n, -n)) for n in range(50_000)])
    rings = write_wkb(3, [[(0, 0), (n, 1)] for n in range(50_000)])
    boxes = bound_rows(pa.array([many, rings, None]))
    assert boxes.sides[:2].tolist() == [[0, -49_999, 49_999, 0], [0, 0, 49_999, 1]]


@pytest.mark.parametrize("copies", [1, 20])
def test_few_values_and_many_are_read_alike(copies):
    values = make_geometries(5, 40)
    for value in values:
        array = pa.array([value] * copies)
        expected = [expected_sides(value)] * copies
        np.testing.assert_array_equal(bound_rows(array).sides, expected)
        with pytest.raises(InvalidDataError):
            parse_wkb(pa.array([value + b"x"] * copies))
        with pytest.raises(InvalidDataError):
            parse_wkb(pa.array([value[:-1]] * copies))


def test_a_signaling_nan_is_left_out_like_any_other():
    signaling = struct.pack("<BII", 1, 2, 2) + bytes.fromhex("010000000000f07f") * 2
    value = signaling + struct.pack("<2d", 1, 2)
    for edges in (None, "spherical"):
        assert bound_rows(pa.array([value]), edges).sides.tolist() == [[1, 2, 1, 2]]


@pytest.mark.parametrize("edges", [None, "spherical"])
def test_many_values_are_parsed_in_parts(monkeypatch, edges):
    values = [write_wkb(1, (n - 50, n / 2, n), flavor=1) for n in range(100)]
    array = pa.array([*values, None])
    whole = bound_rows(array, edges)
    monkeypatch.setattr(boxes_module, "_MAX_ROWS", 7)
    parts = bound_rows(array, edges)
    np.testing.assert_array_equal(parts.sides, whole.sides)
    assert parts.codes.tolist() == whole.codes.tolist()
    assert (parts.extras, parts.extent) == (whole.extras, whole.extent)
    with pytest.raises(InvalidDataError, match="in value 101"):
        bound_rows(pa.array([*values, None, b""]), edges)


def test_nan_is_left_out_of_each_dimension_by_itself():
    points = [write_wkb(1, (1, NAN)), write_wkb(1, (NAN, 2)), write_wkb(1, (NAN, NAN)), None]
    boxes = bound_rows(pa.array(points))
    assert np.isnan(boxes.sides).all()
    assert boxes.extent == (1, 2, 1, 2)
    tracker = BoxTracker()
    tracker.add(pa.array(points[:1]))
    assert (tracker.box, tracker.types) == (None, [1])


def nest(depth: int) -> bytes:
    value = write_wkb(1, (0, 0))
    for _ in range(depth):
        value = write_wkb(7, [value])
    return value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"", "it ends in a header"),
        (b"\1\1\0\0", "it ends in a header"),
        (b"\2\1\0\0\0" + bytes(16), "the byte order is 2"),
        (b"\1\x08\0\0\0" + bytes(16), "the type code is 8"),
        (b"\1\0\0\0\0" + bytes(16), "the type code is 0"),
        (struct.pack("<BIdd", 1, 4001, 0, 0), "the type code is 4001"),
        (struct.pack("<BIddd", 1, 0x80000001, 0, 0, 0), "the type code is 2147483649"),
        (struct.pack("<BId", 1, 1, 0), "1 points do not fit in 8 bytes"),
        (struct.pack("<BII", 1, 2, 1 << 31), "2147483648 points do not fit in 0 bytes"),
        (struct.pack("<BII", 1, 3, 1 << 31), "2147483648 parts do not fit in 0 bytes"),
        (struct.pack("<BIIII", 1, 3, 1, 2, 0), "2 points do not fit in 4 bytes"),
        (struct.pack("<BI", 1, 2), "it ends in a count"),
        (write_wkb(4, [write_wkb(2, [(0, 0)])]), "a member has the type 2; expected 1"),
        (write_wkb(7, [write_wkb(1, (0, 0, 0), flavor=1)]), "other dimensions"),
        (write_wkb(1, (0, 0)) + b"x", "bytes follow the geometry"),
        (write_wkb(7, []) + b"x", "bytes follow the geometry"),
        (nest(MAX_DEPTH), f"nested more than {MAX_DEPTH} levels deep"),
    ],
)
def test_invalid_values_are_refused_with_their_index(value, problem):
    with pytest.raises(InvalidDataError, match="in value 1: ") as caught:
        parse_wkb(pa.array([write_wkb(2, [(0, 0)]), value, None]))
    assert problem in caught.value.message


class Rejection(Exception):
    """Some values that failed one check of the parser."""


def reject(parser: Any, bad: Any, rows: Any, problem: Any) -> None:
    """Raise all values that fail a check, and not only the first."""
    if bad.any():
        assert isinstance(problem, str) or problem(int(np.flatnonzero(bad)[0]))
        raise Rejection(rows[bad] + parser.first_row)


def find_valid(values: Any) -> tuple[Any, Any]:
    """Return the indices of the values that the parser accepts, and their boxes."""
    kept = np.arange(len(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wkb_module.__dict__["_Parser"], "fail", reject)
        while True:
            try:
                return kept, bound_rows(values.take(pa.array(kept)))
            except Rejection as rejection:
                kept = np.delete(kept, rejection.args[0])
            except InvalidDataError as error:  # of a value that is read alone
                found = re.search(r"in value (\d+)", error.message)
                assert found is not None
                kept = np.delete(kept, int(found[1]))


def mutate(rng: random.Random, values: list[bytes]) -> bytes:
    value = bytearray(rng.choice(values))
    for _ in range(rng.choice((1, 1, 3))):
        value[rng.randrange(min(len(value), rng.choice((9, 40, 9999))))] = rng.choice(
            (0, 1, 2, 3, 4, 7, 0xFF, rng.randrange(256))
        )
    if rng.random() < 0.1:
        del value[rng.randrange(len(value)) :]
    return bytes(value)


def check_mutated_wkb(seed: int, count: int) -> Counter[str]:
    """Check that mutated values give an error or the box of a plain reader; count both."""
    rng = random.Random(seed)
    values = make_geometries(seed, 40)
    mutated = [mutate(rng, values) for _ in range(count)]
    expected: dict[int, list[float]] = {}
    for index, value in enumerate(mutated):
        with contextlib.suppress(ValueError, struct.error):
            expected[index] = expected_sides(value)
    kept, boxes = find_valid(pa.array(mutated))
    assert kept.tolist() == list(expected)
    np.testing.assert_array_equal(boxes.sides, list(expected.values()))
    bound_rows(pa.array([mutated[index] for index in expected]), "karney")
    return Counter(refused=count - len(expected), equal=len(expected))


def test_mutated_values_give_an_error_or_the_box_of_a_plain_reader():
    outcomes = check_mutated_wkb(3, 20_000)
    assert min(outcomes.values()) > 4000


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_million_mutated_values_give_an_error_or_the_box_of_a_plain_reader():
    for seed in range(50):
        check_mutated_wkb(seed, 20_000)


def sides_of(value: bytes, edges: str = "spherical") -> list[float]:
    return bound_rows(pa.array([value]), edges).sides[0].tolist()


def test_edges_go_the_shorter_way_around_the_earth():
    assert sides_of(write_wkb(2, [(170, 0), (-170, 10)])) == [170, 0, -170, 10]
    assert sides_of(write_wkb(2, [(-170, 0), (170, 10), (160, 0)])) == [160, 0, -170, 10]
    assert sides_of(write_wkb(4, [write_wkb(1, (179, 0)), write_wkb(1, (-179, 1))])) == [
        179, 0, -179, 1
    ]  # fmt: skip
    assert sides_of(write_wkb(4, [write_wkb(1, (20, 0)), write_wkb(1, (-20, 1))])) == [
        -20, 0, 20, 1
    ]  # fmt: skip
    assert sides_of(write_wkb(1, (180, 5))) in ([180, 5, 180, 5], [-180, 5, -180, 5])
    around = [(longitude, 0) for longitude in range(-180, 181, 90)]
    assert sides_of(write_wkb(2, around))[::2] == [-180, 180]


def test_coordinates_beyond_the_earth_wrap_around_or_give_no_box():
    assert sides_of(write_wkb(1, (200, 10))) == [-160, 10, -160, 10]
    assert sides_of(write_wkb(2, [(-190, 0), (170, 1)])) == [170, 0, 170, 1]
    assert np.isnan(sides_of(write_wkb(1, (math.inf, 0)))).all()
    tracker = BoxTracker("spherical")
    tracker.add(pa.array([write_wkb(1, (10, 95))]))
    assert tracker.box is not None
    assert not tracker.box.is_valid(geographic=True)


def test_edges_reach_beyond_the_latitudes_of_their_ends():
    _, south, _, north = sides_of(write_wkb(2, [(0, 50), (90, 50)]))
    assert south == 50
    assert north == pytest.approx(math.degrees(math.atan(math.tan(math.radians(50)) * 2**0.5)))
    _, south, _, north = sides_of(write_wkb(2, [(0, -50), (90, -50)]), "vincenty")
    assert south < -59.3
    assert -50 < north < -49.7
    assert sides_of(write_wkb(2, [(0, 0), (180, 0)]))[1::2] == [-90, 90]


def test_a_ring_around_a_pole_has_all_longitudes():
    ring = [(0, 80), (120, 80), (-120, 80), (0, 80)]
    west, south, east, north = sides_of(write_wkb(3, [ring]))
    assert (west, east, north) == (-180, 180, 90)
    assert south == 80
    southern = [(longitude, -latitude) for longitude, latitude in ring]
    assert sides_of(write_wkb(3, [southern]))[:3] == [-180, -90, 180]
    assert sides_of(write_wkb(2, ring))[3] < 90


def test_boxes_of_a_column_cross_the_antimeridian_if_that_is_smaller():
    tracker = BoxTracker("spherical")
    for longitude in (175, -178, 170):
        tracker.add(pa.array([write_wkb(1, (longitude, 0)), None]))
    assert tracker.box == Box(170, 0, -178, 0)
    tracker.add(pa.array([write_wkb(1, (0, 3))]))
    assert tracker.box is not None
    assert tracker.box.xmin > tracker.box.xmax or (tracker.box.xmax - tracker.box.xmin) >= 178
    planar = BoxTracker()
    planar.add(pa.array([write_wkb(1, (170, 0)), write_wkb(1, (-178, 0))]))
    assert planar.box == Box(-178, 0, 170, 0)


def test_every_sampled_point_of_an_edge_is_in_its_box():
    rng = random.Random(8)
    for _ in range(60):
        line = [(rng.uniform(-180, 180), rng.uniform(-89, 89)) for _ in range(3)]
        (box,) = (Box(*sides_of(write_wkb(2, line))),)
        for (x1, y1), (x2, y2) in pairwise(line):
            first, second = vector(x1, y1), vector(x2, y2)
            for part in np.linspace(0, 1, 30):
                x, y, z = first * (1 - part) + second * part
                latitude = math.degrees(math.atan2(z, math.hypot(x, y)))
                longitude = math.degrees(math.atan2(y, x))
                near = Box(longitude, latitude, longitude, latitude)
                wide = Box(box.xmin - 1e-9, box.ymin - 1e-9, box.xmax + 1e-9, box.ymax + 1e-9)
                assert wide.intersects(near), (line, box, near)


def vector(longitude: float, latitude: float) -> Any:
    angle, height = math.radians(longitude), math.radians(latitude)
    flat = math.cos(height)
    return np.array([flat * math.cos(angle), flat * math.sin(angle), math.sin(height)])


def test_the_statistics_of_parquet_testing_are_computed_again(parquet_test_data):
    import pyarrow.parquet as pq

    files = list((parquet_test_data / "data" / "geospatial").glob("*.parquet"))
    assert files
    for path in files:
        file = pq.ParquetFile(path)
        index = file.metadata.num_columns - 1
        for group in range(file.num_row_groups):
            chunk: Any = file.metadata.row_group(group).column(index)
            found = chunk.geo_statistics
            if found is None or "geography" in path.name:
                continue
            tracker = BoxTracker()
            for batch in file.iter_batches(row_groups=[group]):
                tracker.add(batch.column(index))
            assert tracker.types == (found.geospatial_types or [])
            box = tracker.box
            names = ("xmin", "ymin", "xmax", "ymax", "zmin", "zmax", "mmin", "mmax")
            expected = [getattr(found, name) for name in names]
            assert expected == [None if box is None else getattr(box, name) for name in names]
