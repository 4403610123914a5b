"""The groups of messages of one file, beginning with its schema message."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from ....formats.arrow.footer_metadata import add_footer_metadata
from ....protocol.splitter import SourceMessage
from ....transport.memory.files import SourceFile
from .generator_source import MessageGroups
from .passthrough import PassthroughMessages
from .projection import ProjectedMessages


def file_groups(
    file: SourceFile, messages: PassthroughMessages | ProjectedMessages
) -> MessageGroups:
    """Return the messages of a file that are sent without decoding them.

    The first group follows the schema at once, so that the reader gets both together.
    """
    groups = messages.groups(file)
    yield [messages.schema_message(), *next(groups, ())]
    yield from groups


def add_footer(groups: MessageGroups, footer: Mapping[bytes, bytes] | None) -> MessageGroups:
    """Return groups whose schema message carries the custom metadata of the footer, if any."""
    return groups if footer is None else _add_pairs(groups, footer)


def _add_pairs(groups: MessageGroups, footer: Mapping[bytes, bytes]) -> MessageGroups:
    with closing(groups):
        (schema, *_), *others = next(groups)
        yield [SourceMessage(add_footer_metadata(bytes(schema), footer), None), *others]
        yield from groups
