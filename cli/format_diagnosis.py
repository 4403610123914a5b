"""What `splitarrow doctor` reports about the format Vortex."""

from __future__ import annotations

from typing import Any

from ..client.stream.format_choice import CHOOSER, choose_for_dataset
from ..errors import MissingExtraError, SplitArrowError


def check_vortex() -> dict[str, Any]:
    """Return whether arrays can be decoded, and at which rate in bytes of Arrow per second."""
    try:
        return {"available": True, "decoding_rate": round(CHOOSER.measure_decoding())}
    except MissingExtraError as error:
        return {"available": False, "reason": error.message}


def choose_format(client: Any, names: list[str]) -> dict[str, Any] | None:
    """Return what ``format="auto"`` chooses for the first dataset of a server, and why.

    Return None if the server has no dataset that can be read.
    """
    for name in names[:1]:
        try:
            choice = choose_for_dataset(client, name, transport="auto")
        except SplitArrowError:
            return None
        return {
            "dataset": name,
            "choice": choice.format,
            "reason": choice.reason,
            "link_rate": None if choice.link_rate is None else round(choice.link_rate),
        }
    return None
