"""ORC files: one record batch for each stripe, of which only the selected columns are read."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from ....transport.memory.files import SourceFile
from ..messages.reencoding import Batches
from ..selection import Selection, has_plain_names
from .file_dataset import FileContents, FileDataset
from .origins import open_with_arrow


class OrcDataset(FileDataset):
    """A dataset in an ORC file. Each reader has one stripe in memory."""

    _kind = "orc file"
    decodes_batches = True

    def inspect(self, file: SourceFile) -> FileContents:
        """Read the footer, and return the contents of the file."""
        with _open_orc(file) as orc:
            return FileContents(file.version, orc.schema, file.size, rows=orc.nrows)

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        with _open_orc(file) as orc:
            stripes = selection.batches.select(range(orc.nstripes))
            names = None
            if selection.columns and has_plain_names(contents.schema):
                names = list(selection.paths or selection.schema.names)
            for stripe in stripes:
                batch = orc.read_stripe(stripe, columns=names)
                file.check()
                yield selection.reorder(batch), None


@contextmanager
def _open_orc(file: SourceFile) -> Generator[Any]:
    from pyarrow import orc

    with open_with_arrow(file, "an ORC file") as handle:
        yield orc.ORCFile(handle)
