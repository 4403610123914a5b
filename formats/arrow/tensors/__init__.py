"""Tensors: the messages Tensor and SparseTensor of Arrow IPC (Tensor.fbs).

`decode_tensor` makes a `Tensor` or a `SparseTensor` of a message, and `encode_tensor` a message of
a tensor. `convert_to_tensor` accepts arrays of NumPy, SciPy and pyarrow. `check_tensor_message`
checks a message. pyarrow reads and writes dense tensors only.
"""

from __future__ import annotations

from .conversion import convert_to_tensor
from .decoding import check_tensor_message, decode_tensor
from .encoding import encode_tensor, write_message
from .files import scan_tensors
from .layout import read_tensor_buffers, read_tensor_layout
from .tensor import AnyTensor, SparseTensor, Tensor

__all__ = [
    "AnyTensor",
    "SparseTensor",
    "Tensor",
    "check_tensor_message",
    "convert_to_tensor",
    "decode_tensor",
    "encode_tensor",
    "read_tensor_buffers",
    "read_tensor_layout",
    "scan_tensors",
    "write_message",
]
