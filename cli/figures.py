"""Figures and foreign text, as people read them."""

from __future__ import annotations

import re

from ..errors import UsageError

_SIZE = re.compile(r"(\d+) ?(?:([kmgt])(i?b?))?b?", re.IGNORECASE)
_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_UNITS = ("kB", "MB", "GB", "TB", "PB")


def count(number: int) -> str:
    """Return a number with its thousands set apart.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts.

    >>> counted(1, "row"), counted(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def parse_size(text: str) -> int:
    """Return the number of bytes that a text says.

    >>> parse_size("64KiB"), parse_size("1 MB"), parse_size("2g"), parse_size("32")
    (65536, 1000000, 2147483648, 32)

    Raises
    ------
    UsageError
        If it says none.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no size: write bytes, or a unit as in 64KiB, 1MiB, 2GiB")
    number, prefix, unit = match.groups(default="")
    base = 1000 if unit.lower() == "b" else 1024
    return int(number) * base ** _EXPONENTS[prefix.lower()]


def size(nbytes: float) -> str:
    """Return a number of bytes in three digits and a decimal unit.

    >>> size(999), size(12_345_678), size(1e9)
    ('999 B', '12.3 MB', '1.00 GB')
    """
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    value, exponent = nbytes / 1000, 0
    while value >= 999.5 and exponent < len(_UNITS) - 1:
        value /= 1000
        exponent += 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {_UNITS[exponent]}"


def rate(nbytes: float, seconds: float) -> str:
    """Return how fast bytes moved.

    >>> rate(3e9, 2)
    '1.50 GB/s'
    """
    return f"{size(nbytes / max(seconds, 1e-9))}/s"


def duration(seconds: float) -> str:
    """Return a time span.

    >>> duration(0.0123), duration(4.56), duration(38.6), duration(83)
    ('12 ms', '4.56 s', '38.6 s', '1 min 23 s')
    """
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.{2 if seconds < 10 else 1}f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def printable(text: str) -> str:
    r"""Return text on one line, with whatever could steer a terminal escaped.

    >>> printable("two\nlines \x1b[31m")
    'two lines \\x1b[31m'
    """
    text = " ".join(text.split("\n"))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, width: int) -> str:
    """Return text of at most `width` characters; an ellipsis stands for what is left out.

    >>> shortened("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= width else f"{text[: width - 1]}…"
