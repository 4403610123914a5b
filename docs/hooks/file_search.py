"""A hook of mkdocs: search in pages that are opened from files, without the network."""

from __future__ import annotations

from typing import Any

_REMOTE_SCRIPT = "https://unpkg.com/iframe-worker/shim"
_OWN_SCRIPT = "javascripts/file-worker.js"


def on_post_page(output: str, page: Any, **_options: Any) -> str:
    """Replace the script that the theme loads from the network."""
    return output.replace(_REMOTE_SCRIPT, "../" * page.url.count("/") + _OWN_SCRIPT)


def on_post_template(output_content: str, **_options: Any) -> str:
    """Do the same for the page of status 404, whose addresses begin at the root."""
    return output_content.replace(_REMOTE_SCRIPT, f"/{_OWN_SCRIPT}")
