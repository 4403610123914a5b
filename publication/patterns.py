"""Patterns for the names of files and objects, as shells have them."""

from __future__ import annotations

import re
from pathlib import Path

_WILDCARD = re.compile(r"[*?\[]")
_TOKEN = re.compile(
    r"(?P<many>\*)|(?P<one>\?)|\[(?P<not>!?)(?P<class>\]?[^\]]*)\]|(?P<text>.)", re.S
)


def has_wildcards(text: str) -> bool:
    """Return whether a path or URL is a pattern.

    Examples
    --------
    >>> has_wildcards("s3://lake/trips/*.parquet"), has_wildcards("s3://lake/trips")
    (True, False)
    """
    return _WILDCARD.search(text) is not None


def name_location(location: str) -> str:
    """Return the name of a file without its suffix, or of a folder; wildcards name nothing.

    Examples
    --------
    >>> name_location("data/flights.arrow"), name_location("s3://lake/trips/year=*/*.parquet")
    ('flights', 'trips')
    """
    parts = [part for part in location.split("/") if not has_wildcards(part)]
    return Path("/".join(parts)).resolve().stem


def split_pattern(location: str) -> tuple[str, str]:
    """Return the folder before the first wildcard, and the pattern for the names below it.

    Examples
    --------
    >>> split_pattern("s3://lake/trips/*/a?.parquet")
    ('s3://lake/trips', '*/a?.parquet')
    >>> split_pattern("trips/")
    ('trips/', '')
    """
    match = _WILDCARD.search(location)
    if match is None:
        return location, ""
    folder, slash, _ = location[: match.start()].rpartition("/")
    # The pattern may begin at the root of the file system, or in the working folder.
    root = folder or slash or "."
    return root, location[len(folder + slash) :].rstrip("/")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return an expression for the names that match a pattern, or whose folder does.

    ``*`` and ``?`` match no slash. ``**`` matches any number of folders.

    Examples
    --------
    >>> matches = compile_pattern("*/[a-c]*.parquet").fullmatch
    >>> bool(matches("2026/b1.parquet")), bool(matches("2026/x/b1.parquet"))
    (True, False)
    >>> bool(compile_pattern("year=*").fullmatch("year=2026/a.parquet"))
    True
    """
    *folders, last = pattern.split("/")
    steps = ["(?:[^/]+/)*" if step == "**" else _translate(step) + "/" for step in folders]
    return re.compile(
        "".join(steps) + (".*" if last == "**" else _translate(last)) + "(?:/.*)?", re.S
    )


def _translate(step: str) -> str:
    """Return the expression for one component of a pattern."""
    parts: list[str] = []
    for match in _TOKEN.finditer(step):
        if match["many"]:
            parts.append("[^/]*")
        elif match["one"]:
            parts.append("[^/]")
        elif match["class"] is not None:
            negation = "^" if match["not"] else ""
            escaped = re.sub(r"([\\\[\]&~|^])", r"\\\1", match["class"])
            parts.append(f"[{negation}{escaped}]")
        else:
            parts.append(re.escape(match["text"]))
    return "".join(parts)
