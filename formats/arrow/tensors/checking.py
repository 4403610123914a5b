"""The check of a tensor message, for messages from elsewhere."""

from __future__ import annotations

from typing import Any

from .decoding import decode_tensor
from .labels import read_labels
from .layout import AnyLayout
from .parsing import read_tensor_layout


def check_tensor_message(
    metadata: bytes | memoryview, body: Any = None, *, swap_bytes: bool = False
) -> AnyLayout:
    """Check a Tensor or SparseTensor message, and return its layout.

    Without `body`, the check takes time in proportion to the metadata: types, shape, strides,
    buffers and their sizes, and labels. With it, the indices of a sparse tensor are checked too, in
    time in proportion to them.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of the message.
    body : pyarrow.Buffer, optional
        The packed body.
    swap_bytes : bool
        Whether the body has the other byte order than this machine.

    Raises
    ------
    ProtocolError
        If the message is malformed; the error names the field and the place in it.
        `InvalidDataError` and `LimitError` are subclasses.
    """
    if body is not None:
        return decode_tensor(metadata, body, swap_bytes=swap_bytes).layout
    layout = read_tensor_layout(metadata)
    read_labels(metadata, layout)
    return layout
