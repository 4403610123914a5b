"""Numbers, sizes, times and untrusted text, formatted for people."""

from __future__ import annotations

from collections.abc import Iterable

from ..formats.text import escape_controls, format_bytes
from ..formats.text import format_count as format_count


def format_number(number: int) -> str:
    """Return a number with separated thousands.

    >>> format_number(1234567)
    '1,234,567'
    """
    return f"{number:,}"


def format_rate(nbytes: float, seconds: float) -> str:
    """Return the throughput of a transfer.

    >>> format_rate(3e9, 2)
    '1.50 GB/s'
    """
    return f"{format_bytes(nbytes / max(seconds, 1e-9))}/s"


def format_duration(seconds: float) -> str:
    """Return a duration.

    >>> [format_duration(seconds) for seconds in (0.0123, 4.56, 38.6, 83)]
    ['12 ms', '4.56 s', '38.6 s', '1 min 23 s']
    """
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.{2 if seconds < 10 else 1}f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def escape_text(text: str) -> str:
    r"""Return text on one line, with characters that could control a terminal escaped.

    >>> escape_text("two\nlines \x1b[31m")
    'two lines \\x1b[31m'
    """
    return escape_controls(" ".join(text.split("\n")))


def shorten(text: str, width: int) -> str:
    """Return at most `width` characters of a text. An ellipsis replaces the rest.

    >>> shorten("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= width else f"{text[: width - 1]}…"


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a clause with the one or two known names that are most similar; empty without one.

    >>> suggest("--limt", ["--limit", "--quiet", "--validate"])
    "; did you mean '--limit'?"
    """
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=2)
    names = get_close_matches(name, near, n=2, cutoff=0.85) or near[:1]
    return f"; did you mean {' or '.join(map(repr, names))}?" if names else ""
