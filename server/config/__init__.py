"""The server's settings: each is declared once, in `ServerSettings`.

Options of ``splitarrow serve``, ``SPLITARROW_…`` variables, keys of the TOML file and the table
in the documentation follow from the declaration.
"""

from __future__ import annotations

from .declaration import Declaration, Group, Reload, Setting, declarations
from .loading import Configuration, load_settings
from .settings import DEFAULT_LISTEN, ServerSettings

__all__ = [
    "DEFAULT_LISTEN",
    "Configuration",
    "Declaration",
    "Group",
    "Reload",
    "ServerSettings",
    "Setting",
    "declarations",
    "load_settings",
]
