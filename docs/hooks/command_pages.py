"""A hook of mkdocs: the page of the commands, from the declarations of their options."""

from __future__ import annotations

import re
from typing import Any

_BAR = "\\|"
_MARK = "<!-- commands -->"
_DEFAULT = re.compile(r" ?\[dim\]\\\[default: (.*?)\]\[/dim\]$")


def on_page_markdown(markdown: str, **_options: Any) -> str:
    """Describe every command in the place of the mark."""
    return markdown.replace(_MARK, describe_commands()) if _MARK in markdown else markdown


def describe_commands() -> str:
    """Return a section with a table of options for each command."""
    from splitarrow.cli.app import COMMANDS, load_command

    commands = [(name, load_command(name)) for name in COMMANDS]
    return "\n\n".join(_describe(name, command) for name, command in commands)


def _describe(name: str, command: Any) -> str:
    """Describe a command, or each of its subcommands."""
    subcommands: dict[str, Any] = getattr(command, "commands", {})
    if not subcommands:
        return _describe_command(name, command)
    return "\n\n".join(
        _describe_command(f"{name} {subname}", each) for subname, each in subcommands.items()
    )


def _describe_command(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    usage = " ".join(["splitarrow", name, *map(_usage, arguments), "[OPTION…]"])
    rows = [_row(f"`{each.metavar or each.name.upper()}`", each) for each in arguments]
    rows += [_row(_flags(each), each) for each in options]
    heading = "| argument or option | description |\n| --- | --- |\n"
    text = _as_markdown(command.help or "")
    return f"## {name}\n\n```text\n{usage}\n```\n\n{text}\n\n{heading}" + "\n".join(rows)


def _usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    name += "…" if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def _flags(option: Any) -> str:
    value = "VALUE" if option.type_descriptor.choices else (option.metavar or "")
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return f"{names} {value.replace('|', ' or ')}".strip()


def _row(first: str, parameter: Any) -> str:
    text = parameter.help or ""
    found = _DEFAULT.search(text)
    default = found[1] if found else ""
    if not found and parameter.show_default and parameter.default not in (None, False):
        default = str(parameter.default)
    description = _as_markdown(_DEFAULT.sub("", text))
    if parameter.type_descriptor.choices:
        choices = ", ".join(f"`{choice}`" for choice in parameter.type_descriptor.choices)
        description += f" One of {choices}."
    if default:
        description += f" Default: {_as_markdown(default)}."
    return f"| {first} | {description.replace('|', _BAR)} |"


def _as_markdown(text: str) -> str:
    """Return text with the markup of rich as Markdown."""
    text = re.sub(r"\[(cyan|dim|bold)\](.*?)\[/\1\]", r"`\2`", text, flags=re.DOTALL)
    return text.replace("\\[", "[")
