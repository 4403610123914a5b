"""Deletion vectors of Delta tables, written after the protocol: no writer in Python makes them."""

from __future__ import annotations

import base64
import json
import struct
import uuid
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

Action = dict[str, Any]
"""An action of the log."""


def encode_base85(data: bytes) -> str:
    """Return the Z85 form of bytes, padded to a multiple of four."""
    data += bytes(-len(data) % 4)
    return base64.b85encode(data).decode().translate(str.maketrans(_B85, _Z85))


def encode_rows(rows: Iterable[int], *, runs: bool = False) -> bytes:
    """Serialize a set of row numbers, with containers of runs or of arrays and bitmaps."""
    buckets: dict[int, list[int]] = {}
    for row in sorted(rows):
        buckets.setdefault(row >> 32, []).append(row & 0xFFFFFFFF)
    data = struct.pack("<IQ", 1681511377, len(buckets))
    for key, numbers in buckets.items():
        data += struct.pack("<I", key) + _encode_bitmap(numbers, runs=runs)
    return data


def _encode_bitmap(numbers: list[int], *, runs: bool) -> bytes:
    containers: dict[int, list[int]] = {}
    for number in numbers:
        containers.setdefault(number >> 16, []).append(number & 0xFFFF)
    count = len(containers)
    if runs and count:
        head = struct.pack("<I", (count - 1) << 16 | 12347)
        head += ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
        bodies = [_encode_runs(values) for values in containers.values()]
    else:
        head = struct.pack("<II", 12346, count)
        bodies = [_encode_container(values) for values in containers.values()]
    for key, values in containers.items():
        head += struct.pack("<HH", key, len(values) - 1)
    if not runs or count >= 4:
        position = len(head) + 4 * count
        for body in bodies:
            head += struct.pack("<I", position)
            position += len(body)
    return head + b"".join(bodies)


def _encode_container(values: list[int]) -> bytes:
    if len(values) <= 4096:
        return struct.pack(f"<{len(values)}H", *values)
    mask = np.zeros(1 << 16, np.bool_)
    mask[values] = True
    return np.packbits(mask, bitorder="little").tobytes()


def _encode_runs(values: list[int]) -> bytes:
    breaks = [index for index in range(1, len(values)) if values[index] != values[index - 1] + 1]
    begins, ends = [0, *breaks], [*breaks, len(values)]
    pairs = [
        number
        for begin, end in zip(begins, ends, strict=True)
        for number in (values[begin], end - begin - 1)
    ]
    return struct.pack(f"<H{len(pairs)}H", len(begins), *pairs)


def describe_inline(data: bytes, rows: int) -> Action:
    """Return the descriptor of a vector in the log."""
    text = encode_base85(data)
    return {
        "storageType": "i",
        "pathOrInlineDv": text,
        "sizeInBytes": len(data),
        "cardinality": rows,
    }


def write_vector(table: Path, data: bytes, rows: int, storage: str, prefix: str = "") -> Action:
    """Write a file with a vector behind another one, and return its descriptor."""
    identity = uuid.uuid4()
    file = table / prefix / f"deletion_vector_{identity}.bin"
    file.parent.mkdir(exist_ok=True)
    first = encode_rows([0])
    file.write_bytes(b"\1" + _frame(first) + _frame(data))
    return {
        "storageType": storage,
        "pathOrInlineDv": (
            prefix + encode_base85(identity.bytes) if storage == "u" else file.as_uri()
        ),
        "offset": 1 + len(_frame(first)),
        "sizeInBytes": len(data),
        "cardinality": rows,
    }


def _frame(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def list_commits(table: Path) -> list[Path]:
    """Return the commits of a log, in order."""
    return sorted((table / "_delta_log").glob("[0-9]" * 20 + ".json"))


def change_log(table: Path, *actions: Action) -> None:
    """Write a commit after the last one."""
    number = int(list_commits(table)[-1].stem) + 1
    text = "\n".join(json.dumps(action) for action in actions)
    (table / "_delta_log" / f"{number:020}.json").write_text(text)


def read_actions(table: Path, name: str) -> list[Action]:
    """Return all actions of a kind in the commits of a log, in order."""
    lines = (line for commit in list_commits(table) for line in commit.read_text().splitlines())
    actions = map(json.loads, lines)
    return [action[name] for action in actions if name in action]


def replace_vector(add: Action, vector: Action | None) -> tuple[Action, Action]:
    """Return the actions that replace the vector of a file that an action has added."""
    removed = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}
    if "deletionVector" in add:
        removed["deletionVector"] = add["deletionVector"]
    added = {key: value for key, value in add.items() if key != "deletionVector"}
    if vector is not None:
        added["deletionVector"] = vector
    return {"remove": removed}, {"add": added}
