"""How options are declared, and help is worded, so that all commands read alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer


def option(*names: str, default: str | None = None, panel: str | None = None, **more: Any) -> Any:
    """Declare an option that has a value.

    Parameters
    ----------
    *names : str
        Its names, if they do not follow from the parameter's.
    default : str, optional
        What holds without it, in words; where that is not a value that can be shown.
    panel : str, optional
        The heading that it is listed under.
    **more
        Further arguments of `typer.Option`, ``help`` among them.
    """
    if default is not None:
        more |= {"help": rf"{more['help']} [dim]\[default: {default}][/dim]", "show_default": False}
    return typer.Option(*names, rich_help_panel=panel, **more)


def flag(*names: str, help: str, panel: str | None = None, **more: Any) -> Any:
    """Declare an option without a value; see `option`."""
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar="", **more)


def prose(command: Callable[..., Any]) -> str:
    """Return a command's docstring with each paragraph on one line, to be wrapped anew."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
