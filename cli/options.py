"""Declare the options of commands, so that all help reads alike."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import typer

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Subcommands:
    """A command that consists of subcommands."""

    help: str
    """Its description, in one line."""
    commands: Mapping[str, Callable[..., Any]]
    """The subcommands by name."""


def option(*names: str, default: str | None = None, panel: str | None = None, **more: Any) -> Any:
    """Declare an option that takes a value."""
    if default is not None:
        more |= {"help": rf"{more['help']} [dim]\[default: {default}][/dim]", "show_default": False}
    return typer.Option(*names, rich_help_panel=panel, **more)


def flag(*names: str, help: str, panel: str | None = None, **more: Any) -> Any:
    """Declare an option that takes no value; see `option`."""
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar="", **more)


def as_markup(text: str) -> str:
    """Return plain text as rich markup, with the code in backticks coloured.

    >>> as_markup("Listen on `tcp://host`.")
    'Listen on [cyan]tcp://host[/cyan].'
    """
    from rich.markup import escape

    return re.sub(r"`([^`]+)`", r"[cyan]\1[/cyan]", escape(text))


def as_paragraphs(command: Callable[..., Any]) -> str:
    """Return a command's docstring with each paragraph on one line, for help to wrap."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def with_parameters(parameters: Iterable[inspect.Parameter]) -> Callable[[F], F]:
    """Replace the signature of a function for typer."""

    def decorate(function: F) -> F:
        target: Any = function
        target.__signature__ = inspect.Signature(list(parameters))
        return function

    return decorate
