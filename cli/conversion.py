"""Commands that convert only the values that need it, because typer imports pydantic for that."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from typer.core import TyperCommand, TyperGroup

Process = Callable[[Any, Any], Any]


class Command(TyperCommand):
    """A command that converts only values that do not have their type yet."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of the command."""
        return skip_needless_conversions(super().get_params(ctx))


class CommandGroup(TyperGroup):
    """The same, with subcommands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of the group."""
        return skip_needless_conversions(super().get_params(ctx))


def skip_needless_conversions(parameters: list[Any]) -> list[Any]:
    """Let parameters convert only values that do not have their type yet. Idempotent.

    To convert a value, typer builds a validator of pydantic, even for an option that is absent.
    That takes longer than most commands.
    """
    for parameter in parameters:
        descriptor = getattr(parameter, "type_descriptor", None)  # not in typer 0.28
        if descriptor is not None and not isinstance(parameter.process_value, partial):
            convert: Process = parameter.process_value
            parameter.process_value = partial(_process, parameter, descriptor.annotation, convert)
    return parameters


def _process(parameter: Any, annotation: Any, convert: Process, context: Any, value: Any) -> Any:
    """Return the value of a parameter; call its callback as typer does."""
    if value is None:
        if parameter.required:
            return convert(context, value)
        value = () if parameter.multiple or parameter.nargs == -1 else None
    elif annotation == list[str] and all(isinstance(item, str) for item in value or (None,)):
        value = list(value)
    elif not (type(value) is annotation is str or value == parameter.default):
        return convert(context, value)
    return value if parameter.callback is None else parameter.callback(context, parameter, value)
