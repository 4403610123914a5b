"""docs/reference lists every public name once, and every command with its options."""

from __future__ import annotations

import re
import runpy
from importlib import import_module
from typing import Any

import pytest

from helpers.package import ROOT
from splitarrow.cli.app import COMMANDS, load_command

PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
LISTED = [
    name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize(
    "module",
    [
        "splitarrow",
        "splitarrow.aio",
        "splitarrow.geo",
        "splitarrow.memory",
        "splitarrow.pipeline",
        "splitarrow.pytorch",
        "splitarrow.testing",
        "splitarrow.variant",
    ],
)
def test_every_public_name_is_listed(module: str) -> None:
    exported = {f"{module}.{name}" for name in import_module(module).__all__}
    modules = {f"splitarrow.{name}" for name in ("__version__", "aio", "errors", "geo", "variant")}
    assert exported - modules <= set(LISTED)


@pytest.mark.parametrize("name", LISTED)
def test_every_listed_name_is_public(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert attribute in import_module(module).__all__


def test_no_name_is_listed_twice() -> None:
    assert sorted(set(LISTED)) == sorted(LISTED)


def test_the_overview_names_every_page() -> None:
    overview = (ROOT / "docs" / "reference" / "index.md").read_text()
    linked = set(re.findall(r"\]\((\w+\.md)\)", overview))
    assert linked == {page.name for page in PAGES} - {"index.md"}


def list_subcommands(command: Any) -> list[tuple[list[str], Any]]:
    """Return a command, or its subcommands with their names."""
    subcommands: dict[str, Any] = getattr(command, "commands", {})
    return [([name], each) for name, each in subcommands.items()] or [([], command)]


def test_the_page_of_commands_describes_every_option() -> None:
    hook = runpy.run_path(str(ROOT / "docs" / "hooks" / "command_pages.py"))
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    text = hook["on_page_markdown"](page)
    assert hook["on_page_markdown"]("another page") == "another page"
    assert "<!--" not in text
    assert not re.search(r"\[/?(cyan|dim)\]", text)
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    commands = [(name, load_command(name)) for name in COMMANDS]
    described = {
        " ".join([name, *subname]): subcommand
        for name, command in commands
        for subname, subcommand in list_subcommands(command)
    }
    assert [section.splitlines()[0] for section in sections] == [*described]
    for command, section in zip(described.values(), sections, strict=True):
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert ", ".join(f"`{name}`" for name in parameter.opts) in section
