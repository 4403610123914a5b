"""The parameters of reads over HTTP: every wrong one is named."""

from __future__ import annotations

import pyarrow as pa
import pytest

from splitarrow.errors import InvalidRequestError
from splitarrow.server.http.parameters import PARAMETERS, DataQuery, parse_json, parse_query

QUERY = (
    "columns=fare,st.x&limit=5&offset=2&rows=1:9&batches=0:2,4:5&shard=1&version=3"
    "&batch_rows=100&compression=lz4"
)


def test_a_query_and_json_make_the_same_request() -> None:
    values = parse_query(QUERY.replace("rows=1:9&", ""))
    request = DataQuery.of("trips", values).request
    assert (request.columns, request.limit, request.offset) == (("fare", "st.x"), 5, 2)
    assert (request.batches, request.shard, request.version) == (((0, 2), (4, 5)), 1, "3")
    body = (
        b'{"columns": ["fare", "st.x"], "limit": 5, "offset": 2, "batches": [[0, 2], [4, 5]], '
        b'"shard": 1, "version": "3", "batch_rows": 100, "compression": "lz4"}'
    )
    assert DataQuery.of("trips", parse_json(body)).request == request
    assert DataQuery.of("trips", parse_query("rows=1:9")).request.rows == (1, 9)


def test_names_with_commas_are_in_double_quotes() -> None:
    assert parse_query('columns="a,b",c')["columns"] == ["a,b", "c"]
    assert parse_query("columns=%22say+%22%22hi%22%22%22")["columns"] == ['say "hi"']


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("colums=a", "'colums'; the nearest is 'columns'"),
        ("token=x", "in the header 'Authorization"),
        ("Access_Token=x", "in the header 'Authorization"),
        ("ticket=x", "in the header 'Authorization"),
        ("limit=1&limit=2", "'limit' is given twice"),
        ("limit=1e3", "limit='1e3' is not a number"),
        ("limit=-1", "limit='-1' is not a number"),
        ("limit=%D9%A3", "is not a number"),
        ("limit=99999999999999999999", "at most 19 digits"),
        ("limit=9999999999999999999", "limit that does not fit"),
        ("batch_rows=0", "at least 1"),
        ("rows=5", "rows='5' is not a range"),
        ("rows=5:3", "the request has the rows 5:3"),
        ("batches=3:4,1:2", "ascending order"),
        ('columns="a', "does not end"),
        ("columns=", "selects no columns"),
        ("compression=gzip", "the request has the compression 'gzip'"),
        ("filter=%FF", "not UTF-8"),
        ("filter=a&substrait=b", "both filter and substrait"),
        ("substrait=a/b", "not base64url"),
        ("filter=" + "x" * 50_000, "a filter of 50000 characters"),
        ("&".join(f"x{n}=1" for n in range(101)), "more than 100 fields"),
    ],
)
def test_a_wrong_query_is_refused(query: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        DataQuery.of("trips", parse_query(query))
    assert reason in raised.value.message


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[1]", "not a JSON object"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"limit": true}', "limit has the invalid value True"),
        (b'{"filter": 5}', "filter is not text"),
        (b'{"columns": "a"}', "columns has the invalid value 'a'"),
        (b'{"dataset": "other"}', "no parameter 'dataset'"),
        (b'{"current": true}', "no parameter 'current'"),
        (b'{"token": "x"}', "in the header 'Authorization"),
    ],
)
def test_wrong_json_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        DataQuery.of("trips", parse_json(body))
    assert reason in raised.value.message


def test_a_filter_is_bound_to_the_schema() -> None:
    schema = pa.schema([("d", pa.decimal128(5, 2))])
    query = DataQuery.of("trips", {"filter": "d <= 4.999"})
    assert query.bind(schema).filter
    with pytest.raises(InvalidRequestError, match="no column 'x'"):
        DataQuery.of("trips", {"filter": "x = 1"}).bind(schema)


def test_every_parameter_is_described() -> None:
    assert all(text.endswith(".") for _, text in PARAMETERS.values())
