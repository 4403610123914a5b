"""The code blocks, headings and links of the pages of the documentation."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from helpers.package import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
_HOOK = "on_page_markdown"
_PARSER = MarkdownIt("commonmark").enable("table")


def name_page(page: Path) -> str:
    """Return the path of a page from the root of the repository."""
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: str
    line: int
    """The line of its first line of code, from 1."""
    language: str
    """Empty for an indented block."""
    code: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page, in order."""
    blocks: list[Block] = []
    paragraph = ""
    for token in _PARSER.parse(page.read_text()):
        if token.type == "inline":
            paragraph = token.content
        # What is indented after "!!!" is an admonition of MkDocs.
        if token.type == "fence" or (
            token.type == "code_block" and not paragraph.startswith("!!!")
        ):
            assert token.map is not None
            line = token.map[0] + (2 if token.type == "fence" else 1)
            blocks.append(Block(name_page(page), line, token.info.strip(), token.content))
    return blocks


def read_links(page: Path) -> Iterator[str]:
    """Yield the targets of the links and images of a page."""
    for token in _inline_tokens(page):
        for name in ("href", "src"):
            if (target := token.attrGet(name)) is not None:
                yield str(target)


def read_anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a built page, as MkDocs names them."""
    text = page.read_text()
    for hook in _hooks():
        text = hook(text)
    tokens = _PARSER.parse(text)
    headings = [
        "".join(part.content for part in content.children or [])
        for opening, content in pairwise(tokens)
        if opening.type == "heading_open"
    ]
    return {re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-") for text in headings}


@cache
def _hooks() -> list[Callable[[str], str]]:
    """Return the hooks that write tables into pages when these are built."""
    modules = [runpy.run_path(str(path)) for path in (ROOT / "docs" / "hooks").glob("*.py")]
    return [module[_HOOK] for module in modules if _HOOK in module]


def _inline_tokens(page: Path) -> Iterator[Token]:
    for token in _PARSER.parse(page.read_text()):
        yield from token.children or []
