"""Damaged messages of tensors, through the server, the checker and the client.

Each input is a file with one message, some of whose bytes differ. The server scans the file. What
it accepts is checked with its body, and decoded as a client does.
"""

from __future__ import annotations

import random
import resource
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from helpers.tensors import encapsulate_tensor, make_source, make_tensor
from splitarrow.client.stream.decoders import TensorDecoder
from splitarrow.errors import ProtocolError
from splitarrow.formats.arrow.tensors import SparseTensor, check_tensor_message, scan_tensors
from splitarrow.formats.arrow.tensors.labels import TENSOR_SCHEMA
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.memory import ReceivedBody
from splitarrow.protocol.messages import Message
from splitarrow.protocol.tags import BodyType
from splitarrow.server.catalog.tensors import make_schema_message

MEMORY = 1 << 30
_BYTES = (0, 1, 2, 3, 4, 7, 8, 16, 64, 127, 128, 254, 255)


def damage(data: bytes, rng: random.Random) -> bytearray:
    """Change a few bytes, or cut the file."""
    changed = bytearray(data)
    number = rng.random()
    for _ in range(1 if number < 0.7 else 3):
        at = int(rng.random() * len(changed))
        changed[at] = _BYTES[int(rng.random() * len(_BYTES))] if number < 0.9 else at & 255
    if number > 0.98:
        del changed[int(rng.random() * len(changed)) :]
    return changed


class Battery:
    """The messages of one kind, damaged and read.

    Parameters
    ----------
    kind : str
        The kind of the tensor.
    """

    def __init__(self, kind: str) -> None:
        tensor = make_tensor(make_source(kind), "t" if kind == "dense" else None)
        self.data = encapsulate_tensor(tensor)
        (self.message,) = self.scan(bytearray(self.data))
        schema = make_schema_message(is_big_endian=False)
        first = Message(0, bytes(schema.metadata), None, BodyType.PACKED)
        self.decoder = TensorDecoder(TENSOR_SCHEMA, first, DEFAULT_LIMITS)

    @staticmethod
    def scan(data: bytearray) -> list[Any]:
        """Find the tensors in a file as the server does."""
        return list(scan_tensors(lambda at, nbytes: bytes(data[at : at + nbytes]), len(data)))

    def run(self, rng: random.Random) -> str:
        """Read one damaged file; return the outcome."""
        data = damage(self.data, rng)
        head = self.message.body_offset
        is_whole = len(data) == len(self.data) and bytes(data[:head]) == self.data[:head]
        found = [self.message] if is_whole else self.scan(data)
        for message in found:
            begin, end = message.body_offset, message.body_offset + message.layout.body_length
            part = bytes(data[begin:end])
            if message.layout == self.message.layout and part == self.data[begin:end]:
                continue  # what differs has no meaning: the value is equal
            body = pa.py_buffer(part)
            layout = message.layout
            if rng.random() < 0.1:  # the decoder below does the same
                assert check_tensor_message(message.metadata, body) == layout
            received = Message(1, message.metadata, ReceivedBody.wrap(body), BodyType.PACKED)
            self.use(self.decoder.decode(received), layout)
        return "read" if found else "empty"

    @staticmethod
    def use(tensor: Any, layout: Any) -> None:
        """Read all values of a tensor, as code would that trusts it."""
        assert tensor.layout == layout
        if isinstance(tensor, SparseTensor):
            coordinates = tensor.coordinates()
            assert coordinates.shape == (tensor.non_zero_length, tensor.ndim)
            assert (coordinates >= 0).all()
            assert (coordinates < np.array(tensor.shape, "u8").reshape(1, -1)).all()
            tensor.values.copy()
        else:
            assert tensor.to_numpy().copy().shape == tensor.shape


def run_battery(kind: str, count: int, seed: int) -> Counter[str]:
    """Read damaged files with little memory; return how often each outcome was seen.

    Raises
    ------
    AssertionError
        If an input was neither read nor refused by a `ProtocolError`. It names the input, whose
        random numbers begin with ``seed * 2**40 + number``.
    """
    battery = Battery(kind)
    outcomes: Counter[str] = Counter()
    rng = random.Random()
    with limit_memory(MEMORY):
        for number in range(count):
            rng.seed((seed << 40) + number)
            try:
                outcomes[battery.run(rng)] += 1
            except ProtocolError as error:
                outcomes[type(error).__name__] += 1
            except BaseException as error:
                raise AssertionError(f"{kind}: input {number} of seed {seed}") from error
    return outcomes


@contextmanager
def limit_memory(nbytes: int) -> Generator[None]:
    """Let this process allocate at most `nbytes` more bytes while the context lasts."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
