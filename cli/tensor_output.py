"""Write the tensors of a stream to a file, or show them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rich.text import Text

from ..errors import UsageError
from ..formats.arrow.tensors import AnyTensor, Tensor, encode_tensor, write_message
from ..formats.arrow.tensors.files import write_npy_header
from ..formats.arrow.tensors.tensor import format_shape
from ..formats.text import format_bytes
from .formatting import escape_text, shorten
from .output_file import TENSOR_SUFFIXES
from .terminal import TransferProgress, call_repeatedly, make_console, make_table, standard_output

if TYPE_CHECKING:
    from .output_file import OutputFile

_CHUNK_BYTES = 16 << 20
_POLL_SECONDS = 0.1
_SHOWN = 10
_VALUES = 5
_VALUE_WIDTH = 60


class TensorPreview:
    """Keeps descriptions of the first tensors of a stream."""

    def __init__(self) -> None:
        self._descriptions: list[dict[str, Any]] = []
        self.count = 0
        """The number of tensors so far."""

    def add(self, tensor: AnyTensor) -> None:
        """Keep the description of a tensor, unless there are many."""
        self.count += 1
        if len(self._descriptions) < _SHOWN:
            values = tensor.to_numpy() if isinstance(tensor, Tensor) else tensor.values
            first = ", ".join(str(value) for value in values.reshape(-1)[:_VALUES].tolist())
            self._descriptions.append(
                {
                    "name": tensor.name,
                    "kind": "dense" if isinstance(tensor, Tensor) else tensor.kind,
                    "type": tensor.dtype,
                    "shape": list(tensor.shape),
                    "bytes": tensor.nbytes,
                    "first_values": first,
                }
            )

    def describe(self) -> dict[str, Any]:
        """Return the number of tensors and the descriptions, for JSON."""
        return {"count": self.count, "tensors": self._descriptions}

    def show(self) -> None:
        """Print the descriptions on standard output."""
        table = make_table()
        for heading in ("tensor", "kind", "type", "shape", "size", "first values"):
            table.add_column(heading, overflow="fold")
        for name, kind, dtype, shape, nbytes, first in map(dict.values, self._descriptions):
            texts = (name or "", kind, dtype, format_shape(shape), format_bytes(nbytes))
            row = (*map(escape_text, texts), shorten(escape_text(first), _VALUE_WIDTH))
            table.add_row(*map(Text, row))
        console = make_console()
        console.print(table)
        if self.count > len(self._descriptions):
            console.print(f"… and {self.count - len(self._descriptions)} more")


def copy_tensors(
    stream: Any, output: str | None, file: OutputFile | None, progress: TransferProgress
) -> TensorPreview:
    """Read the tensors of a stream to its end, and write them to a file.

    Without `output`, nothing is written. `file` is None for standard output, too. Raises
    `UsageError` if the format cannot hold the tensors.
    """
    suffix = "" if output is None else Path(output).suffix.lower()
    if output is not None and (file is None or suffix not in TENSOR_SUFFIXES):
        raise UsageError(
            f"{output}: the dataset holds tensors; write to a file whose name ends in "
            f"{' or '.join(TENSOR_SUFFIXES)}"
        )
    preview = TensorPreview()

    def show_bytes() -> None:
        progress.update(None, stream.bytes_received)

    # One tensor may take long.
    shown = call_repeatedly(show_bytes, _POLL_SECONDS) if progress.is_shown else nullcontext()
    with shown:
        if file is None:
            for tensor in stream.tensors():
                preview.add(tensor)
        elif suffix == ".npy":
            tensor, *others = islice(stream.tensors(), 2)
            if others:
                raise UsageError(
                    f"{output}: a .npy file holds one tensor, and the dataset has several; write "
                    "to a .tensor file, or select one, as with --batches 0:1"
                )
            preview.add(tensor)
            with file, open(file.part, "wb") as target:
                _write_npy(target, tensor, output or "")
        else:
            with file, open(file.part, "wb") as target:
                for tensor in stream.tensors():
                    preview.add(tensor)
                    _write(target, write_message(encode_tensor(tensor)))
    return preview


def show_tensors(stream: Any, *, as_json: bool) -> None:
    """Describe the tensors of a stream on standard output."""
    preview = TensorPreview()
    for tensor in stream.tensors():
        preview.add(tensor)
    with standard_output():
        if as_json:
            print(json.dumps(preview.describe(), ensure_ascii=False))
        else:
            preview.show()


def _write_npy(target: BinaryIO, tensor: AnyTensor, output: str) -> None:
    if not isinstance(tensor, Tensor):
        raise UsageError(f"{output}: a .npy file cannot hold a sparse tensor; use .tensor")
    header, values = write_npy_header(tensor)
    _write(target, (header, values.reshape(-1).view("u1")))


def _write(target: BinaryIO, parts: Iterable[Any]) -> None:
    for part in parts:
        view = memoryview(part)
        if view.nbytes:
            view = view.cast("B")
        for begin in range(0, view.nbytes, _CHUNK_BYTES):
            target.write(view[begin : begin + _CHUNK_BYTES])
