"""Rows that a request selects by their numbers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from itertools import accumulate

from ....errors import InvalidRequestError
from ....protocol.request import Request
from ..dataset import Dataset, Encoding, Source


def open_rows(dataset: Dataset, request: Request, encoding: Encoding) -> Source:
    """Open the rows of a dataset for one reader; see `Dataset.open` and `resolve_rows`."""
    return dataset.open(resolve_rows(dataset, request, encoding), encoding)


def resolve_rows(dataset: Dataset, request: Request, encoding: Encoding) -> Request:
    """Return a request for the record batches that contain the rows of a request.

    If it selects parts of them, it has an offset and a limit as well. With a filter, which precedes
    both, it has `rows` within the record batches instead. It is for the version in which the rows
    were counted. Blocking: it counts the rows of the dataset.

    Parameters
    ----------
    dataset : Dataset
        The dataset.
    request : Request
        The request. Without `rows`, it is returned unchanged.
    encoding : Encoding
        The bounds on reading the dataset.

    Raises
    ------
    InvalidRequestError
        If the dataset does not have the rows, or the request selects record batches, too.
    SplitArrowError
        As `Dataset.count_rows` does.
    """
    if request.rows is None:
        return request
    if request.batches is not None:
        raise InvalidRequestError(
            "the ticket selects both rows and batches; select one of them", stream=request.dataset
        )
    version = request.version or dataset.version or None
    part = Request(request.dataset, shard=request.shard, version=version)
    ends = list(accumulate(dataset.count_rows(part, encoding)))
    begin, end = request.rows
    total = ends[-1] if ends else 0
    if end > total:
        raise InvalidRequestError(
            f"there are no rows {begin}:{end}; there are {total}, counted from 0",
            stream=request.dataset,
        )
    request = replace(request, rows=None, version=version)
    if begin == end:
        return replace(request, limit=0)
    first, last = bisect_right(ends, begin), bisect_left(ends, end)
    start = ends[first - 1] if first else 0
    request = replace(request, batches=(first, last + 1))
    if (begin, end) == (start, ends[last]):
        return request
    if request.filter is not None:
        return replace(request, rows=(begin - start, end - start))
    offset = request.offset or 0
    count = max(0, end - begin - offset)
    limit = count if request.limit is None else min(request.limit, count)
    return replace(request, offset=begin - start + offset, limit=limit)
