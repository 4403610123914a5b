"""Sizes in bytes, as people write them: ``64KiB``, ``1MB``, ``10GiB``."""

from __future__ import annotations

import re

from .errors import UsageError

_SIZE = re.compile(r"(\d+) ?(?:([kmgt])(i?b?))?b?", re.IGNORECASE)
_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_DECIMAL_UNITS = ("kB", "MB", "GB", "TB", "PB")
_BINARY_UNITS = ("TiB", "GiB", "MiB", "KiB")


def parse_size(text: str) -> int:
    """Return a size in bytes.

    ``kB``, ``MB``, ``GB`` and ``TB`` are powers of 1000. ``K``, ``KiB`` and so on are powers of
    1024. Case does not matter.

    Raises
    ------
    UsageError
        If `text` is not a size.

    Examples
    --------
    >>> parse_size("64KiB"), parse_size("1 MB"), parse_size("2g"), parse_size("32")
    (65536, 1000000, 2147483648, 32)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text!r} is not a size: give a number of bytes, or a unit as in 64KiB, 1MB or 2GiB"
        )
    number, prefix, unit = match.groups(default="")
    base = 1000 if unit.lower() == "b" else 1024
    return int(number) * base ** _EXPONENTS[prefix.lower()]


def format_size(nbytes: int) -> str:
    """Return a size that `parse_size` reads back, in the largest binary unit that divides it.

    Examples
    --------
    >>> format_size(10 << 30), format_size(1500)
    ('10GiB', '1500')
    """
    for exponent, unit in zip((4, 3, 2, 1), _BINARY_UNITS, strict=True):
        if nbytes and nbytes % 1024**exponent == 0:
            return f"{nbytes // 1024**exponent}{unit}"
    return str(nbytes)


def format_bytes(nbytes: float) -> str:
    """Return a number of bytes with three digits and a decimal unit.

    Examples
    --------
    >>> format_bytes(999), format_bytes(12_345_678), format_bytes(1e9)
    ('999 B', '12.3 MB', '1.00 GB')
    """
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    value, exponent = nbytes / 1000, 0
    while value >= 999.5 and exponent < len(_DECIMAL_UNITS) - 1:
        value /= 1000
        exponent += 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {_DECIMAL_UNITS[exponent]}"
