"""The settings as a page of the documentation.

``python -m splitarrow.server.config.page > docs/settings.md`` writes it.
"""

from __future__ import annotations

from itertools import groupby

from .declaration import Declaration, Reload, Setting, declarations
from .settings import ServerSettings

_INTRODUCTION = """\
# Settings

These are the settings of `splitarrow serve`. A setting's name is a key of the TOML file that
`--config` names, and a keyword argument of `splitarrow.serve`. The option is the same name with
hyphens: `--batch-rows` for `batch_rows`. The environment variable is the name in capitals with a
prefix: `SPLITARROW_BATCH_ROWS`.

An option wins over a variable, and a variable wins over the file. Only `datasets` is merged: the
server serves those of all three. In a variable, `datasets` is a JSON object, and `listen`,
`http_hosts` and `shm_users` are JSON arrays.

A size is a number of bytes or has a unit, as in `64KiB`, `100MB` or `4GiB`.

The last column shows when a running daemon applies a change: after a restart only, on a reload
(SIGHUP, or `splitarrow reload`), or on a reload and when the named file changes.

The server refuses unknown settings, unknown variables that begin with `SPLITARROW_`, and settings
that have no effect because another one is missing.
"""
_RELOAD = {
    Reload.RESTART: "restart",
    Reload.RELOAD: "reload",
    Reload.CHANGE: "reload, file change",
}


def settings_page() -> str:
    """Return the page in Markdown: one table for each group of settings."""
    sections = [_INTRODUCTION]
    for group, members in groupby(declarations(ServerSettings), lambda one: one.setting.group):
        sections.append(
            f"## {group.value}\n\n"
            "| setting | value | default | description | applied on |\n"
            "| --- | --- | --- | --- | --- |\n" + "".join(map(_row, members))
        )
    return "\n".join(sections)


def _row(declaration: Declaration) -> str:
    setting = declaration.setting
    cells = (
        f"`{declaration.name}`",
        _value(declaration),
        "false" if declaration.is_flag else declaration.default_text or "",
        _description(setting),
        _RELOAD[setting.reload],
    )
    return " | ".join(["", *(cell.replace("|", r"\|") for cell in cells), ""]).strip() + "\n"


def _description(setting: Setting) -> str:
    if not setting.needs:
        return setting.help
    return f"{setting.help} Needs {' or '.join(f'`{name}`' for name in setting.needs)}."


def _value(declaration: Declaration) -> str:
    if declaration.is_flag:
        return "`true` or `false`"
    if declaration.choices:
        return ", ".join(f"`{choice}`" for choice in declaration.choices)
    return f"`{declaration.setting.metavar}`"


if __name__ == "__main__":
    print(settings_page(), end="")  # noqa: T201
