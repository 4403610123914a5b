"""Damage to bytes, as a broken disk, a wrong writer or an attacker may do it."""

from __future__ import annotations

import random

_NUMBERS = [
    *(0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 1 << 15, (1 << 16) - 1, 1 << 16, 1 << 24),
    *((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63),
    *((1 << 64) - 1, (1 << 64) - 8),
]


def overwrite(data: bytearray, rng: random.Random) -> None:
    """Change some bytes in place."""
    width = rng.choice((1, 1, 1, 2, 4, 8))
    if len(data) < width:
        return
    at = rng.randrange(len(data) - width + 1)
    if rng.random() < 0.5:
        at -= at % width
    old = int.from_bytes(data[at : at + width], "little")
    new = rng.choice(
        (old ^ 1 << rng.randrange(8 * width), rng.choice(_NUMBERS), old + rng.randint(-9, 9))
    )
    data[at : at + width] = (new % (1 << 8 * width)).to_bytes(width, "little")


def rearrange(data: bytearray, rng: random.Random) -> None:
    """Truncate, delete, insert or repeat a range."""
    at = rng.randrange(len(data) + 1)
    length = rng.choice((1, 2, 4, 8, 16, rng.randrange(200)))
    match rng.randrange(4):
        case 0:
            del data[at:]
        case 1:
            del data[at : at + length]
        case 2:
            data[at:at] = rng.randbytes(length)
        case _:
            data[at:at] = data[at : at + length]


def damaged(data: bytes, rng: random.Random, *, keep_length: bool = False) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if keep_length or rng.random() < 0.7:
            overwrite(changed, rng)
        else:
            rearrange(changed, rng)
    return bytes(changed)
