"""Checks of the messages of a file before pyarrow decodes them."""

from __future__ import annotations

import struct

from ....errors import ProtocolError
from ....formats.arrow.checker import MessageChecker
from ....formats.arrow.dictionaries import read_dictionary_types
from ....formats.arrow.framing import parse_prefix
from ....protocol.limits import DEFAULT_LIMITS
from ....transport.memory.files import SourceFile
from ..messages.message_index import MessageIndex

_I64 = struct.Struct("<q")


class FileMessageChecker:
    """Checks the messages of a file whose bodies the server decodes.

    It reads their metadata, and of compressed bodies 8 bytes for each buffer.

    Parameters
    ----------
    file : SourceFile
        The file.
    index : MessageIndex
        Its messages.
    """

    def __init__(self, file: SourceFile, index: MessageIndex) -> None:
        self._file = file
        self._blocks = index.blocks
        self._checker = MessageChecker(
            index.schema,
            read_dictionary_types(index.schema_metadata, index.schema),
            max_buffers=DEFAULT_LIMITS.buffers,
            max_metadata_bytes=DEFAULT_LIMITS.metadata_bytes,
            max_decoded_bytes=DEFAULT_LIMITS.body_bytes,
        )

    def check(self, number: int) -> bool:
        """Check a message, and return whether it is a record batch.

        Parameters
        ----------
        number : int
            The index of the message in `MessageIndex.blocks`.

        Raises
        ------
        DatasetError
            If the message does not fit the schema, its body or the limits. The error gives its
            offset, its field and its buffer.
        """
        offset, metadata_length, body_length = self._blocks[number]
        data, body = self._file.read(offset, metadata_length), offset + metadata_length
        try:
            checked = self._checker.check_parts(
                data[parse_prefix(data[:8]).nbytes :],
                body_length,
                lambda at: _I64.unpack(self._file.read(body + at, 8))[0],
            )
        except ProtocolError as error:
            raise self._file.corruption_error(offset, error.message) from None
        return checked.dictionary_id is None
