"""A hook of mkdocs: the diagrams of states in the page of the wire format, from the tables."""

from __future__ import annotations

from typing import Any

from splitarrow.protocol.states import READER, SERVER, ReaderState, ServerState, draw_diagram

_DIAGRAMS = {
    "<!-- server states -->": draw_diagram(SERVER, ServerState.PREFACE),
    "<!-- reader states -->": draw_diagram(READER, ReaderState.CONNECTING),
}


def on_page_markdown(markdown: str, **_options: Any) -> str:
    """Put the diagrams in the place of their marks."""
    for mark, diagram in _DIAGRAMS.items():
        markdown = markdown.replace(mark, f"```mermaid\n{diagram}\n```")
    return markdown
