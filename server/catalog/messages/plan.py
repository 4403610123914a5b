"""The choice between passthrough, projection and re-encoding.

Messages can be sent without decoding them if the request keeps their boundaries and their
compression: it has no filter, no offset inside a record batch, no limit or batch size that a
record batch exceeds, and the compression of the file or none in particular. Then a request for
all columns passes the messages through, and a request for some columns projects them.
Everything else is re-encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing

from ....formats.arrow.custom_metadata import add_footer_metadata
from ....protocol.request import Request
from ....protocol.splitter import SourceMessage
from ....transport.memory.files import SourceFile
from ..dataset import Encoding, MessageGroups
from ..selection import Selection
from .message_index import MessageIndex
from .passthrough import PassthroughMessages
from .projection import ProjectedMessages


def plan_file(
    selection: Selection,
    index: MessageIndex | None,
    file: SourceFile,
    *,
    regions: bool,
    find_group_bytes: Callable[[], int],
) -> PassthroughMessages | ProjectedMessages | None:
    """Return the messages of a file to send without decoding them; None to re-encode.

    The metadata of the file is read where the decision depends on it. Raises `DatasetError` if it
    cannot be read.
    """
    if index is None or selection.filter is not None or selection.offset or selection.derivation:
        return None
    if selection.compression not in (None, index.codec or "none") and len(index.blocks):
        return None
    if not selection.batches.is_all:
        index = index.select_batches(file, selection.batches)
    if not _keeps_boundaries(selection, index, file):
        return None
    if selection.columns is None:
        return PassthroughMessages(index, regions=regions, find_group_bytes=find_group_bytes)
    return ProjectedMessages.plan(index, selection, file)


def allows_passthrough(selection: Selection, codecs: Collection[str]) -> bool:
    """Return whether several files with the same schema message can be passed through."""
    return (
        selection.filter is None
        and not selection.offset
        and selection.columns is None
        and selection.limit is None
        and selection.batch_rows is None
        and (selection.compression is None or set(codecs) == {selection.compression})
    )


def keeps_messages(request: Request, encoding: Encoding) -> bool:
    """Return whether a request leaves every message of an Arrow file as it is stored."""
    changes = (request.columns, request.filter, request.limit, request.offset, request.rows)
    return (
        all(change is None for change in (*changes, request.batches, request.batch_rows))
        and request.format in (None, "arrow")
        and encoding.batch_rows is None
    )


def _keeps_boundaries(selection: Selection, index: MessageIndex, file: SourceFile) -> bool:
    """Return whether limit and batch size leave every record batch whole."""
    if selection.limit is None and selection.batch_rows is None:
        return True
    rows = index.list_rows(file)
    if selection.limit is not None and selection.limit < sum(rows):
        return False
    return selection.batch_rows is None or selection.batch_rows >= max(rows, default=0)


def file_groups(
    file: SourceFile, messages: PassthroughMessages | ProjectedMessages
) -> MessageGroups:
    """Return the messages of a file that are sent without decoding them.

    The first group follows the schema at once, so that the reader gets both together.
    """
    groups = messages.groups(file)
    yield [messages.schema_message, *next(groups, ())]
    yield from groups


def add_footer(groups: MessageGroups, footer: Mapping[bytes, bytes]) -> MessageGroups:
    """Yield groups whose schema message carries the custom metadata of the footer."""
    with closing(groups):
        (schema, *_), *others = next(groups)
        yield [SourceMessage(add_footer_metadata(bytes(schema), footer), None), *others]
        yield from groups
