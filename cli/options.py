"""Declare the options of commands, so that all help reads alike."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
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
    default: str | None = None
    """The subcommand that runs if none is named; None shows help."""


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


def with_arguments(
    *parsers: Callable[..., dict[str, Any]], without: Collection[str] = ()
) -> Callable[[F], F]:
    """Give a command the options of parsers in the place of its parameter ``arguments``.

    The parameters of a parser declare its options. The command receives the results of all parsers
    as one dict. It does not have the options in `without`.
    """
    groups = [
        (
            parser,
            [each for each in _list_parameters(parser) if each.name not in without],
        )
        for parser in parsers
    ]

    def decorate(command: F) -> F:
        @wraps(command)
        def run(**values: Any) -> Any:
            arguments: dict[str, Any] = {}
            for parser, declared in groups:
                arguments |= parser(**{each.name: values.pop(each.name) for each in declared})
            return command(**values, arguments=arguments)

        parameters: list[inspect.Parameter] = []
        for parameter in _list_parameters(command):
            if parameter.name == "arguments":
                parameters += (each for _, declared in groups for each in declared)
            else:
                parameters.append(parameter)
        decorated: Any = with_parameters(parameters)(run)
        return decorated

    return decorate


def _list_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function as parameters that are passed by name."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
