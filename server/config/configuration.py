"""The configuration of a server: arguments, ``SPLITARROW_…`` variables and a TOML file.

`Configuration` builds the settings from them. It refuses unknown variables, and settings without
effect. Its errors name the file and the line, the variable or the argument.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsConfigDict

from ...errors import ConfigError
from .declaration import ENVIRONMENT_PREFIX, declarations, nearest
from .settings import Settings

_TOML_POSITION = re.compile(r" \(at line (\d+), column \d+\)$")


@dataclass(frozen=True)
class Configuration:
    """The sources of a server's settings. They can be read again while the server runs.

    An argument wins over a variable, and a variable wins over the file. Only `datasets` is
    merged: the server serves those of all three.
    """

    file: Path | None = None
    """A TOML file. Its keys are the fields of `Settings`."""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of `Settings`. None is an argument that was not given."""
    uses_options: bool = False
    """Whether the arguments are options of the command line, and errors name them so."""

    def load(self) -> Settings:
        """Return the settings.

        Raises `ConfigError` if the file cannot be read, or a setting is unknown, has an invalid
        value or has no effect. The error names every problem, with the file and line, variable or
        argument.
        """
        if self.file is not None and not self.file.is_file():
            raise ConfigError(f"{self.file}: the configuration file does not exist")
        problems = unknown_variables(os.environ)
        if problems:
            raise ConfigError("; ".join(problems))

        class Loaded(Settings):
            model_config = SettingsConfigDict(
                title=Settings.__name__, toml_file=self.file, use_attribute_docstrings=False
            )

        try:
            loaded = Loaded(**self._given())
        except ValidationError as error:
            raise ConfigError("; ".join(map(self._describe, error.errors()))) from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(self._describe_toml(str(error))) from None
        except (ValueError, OSError) as error:  # a variable that is not JSON, an unreadable file
            raise ConfigError(f"{self.file or 'environment'}: {error}") from None
        # Worker processes unpickle the settings, so they must not be of a local class.
        settings = Settings.model_construct(**dict(loaded))
        problems = list(self._describe_ineffective(settings))
        if problems:
            raise ConfigError("; ".join(problems))
        return settings

    def locate(self, *path: str) -> str:
        """Return where a value is set: a file and its line, a variable, or an argument."""
        name, inner = path[0], path[1:]
        key = ".".join(path)
        given = self._given().get(name)
        if given is not None and (not inner or inner[0] in given):
            return f"--{name.replace('_', '-')}" if self.uses_options and not inner else key
        variable = f"{ENVIRONMENT_PREFIX}{name.upper()}"
        if variable in os.environ and (not inner or f'"{inner[0]}"' in os.environ[variable]):
            return variable
        line = None if self.file is None else find_line(self.file.read_text(), path)
        return key if line is None else f"{self.file}, line {line}: {key}"

    def _given(self) -> dict[str, Any]:
        return {name: value for name, value in self.arguments.items() if value is not None}

    def _describe(self, error: ErrorDetails) -> str:
        path = [str(part) for part in error["loc"]] or ["settings"]
        reason = str(error["msg"]).removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            is_tls = path[0] == "tls"  # the name of the clients' argument
            names = "; pass the files as 'tls_cert' and 'tls_key'"
            reason = "no such setting"
            reason += names if is_tls else _suggest(path[0], Settings.model_fields)
        elif error["type"] == "literal_error":
            choices = re.findall(r"'([^']+)'", error.get("ctx", {}).get("expected", ""))
            reason += _suggest(str(error["input"]), choices)
        return f"{self.locate(*path)}: {reason}"

    def _describe_toml(self, problem: str) -> str:
        position = _TOML_POSITION.search(problem)
        if position is None:
            return f"{self.file}: {problem}"
        return f"{self.file}, line {position.group(1)}: {problem[: position.start()]}"

    def _describe_ineffective(self, settings: Settings) -> Iterator[str]:
        for name, needed in ineffective_settings(settings):
            where = self.locate(name)
            if not (name.startswith("tls_") and where.startswith(ENVIRONMENT_PREFIX)):
                # Clients have variables of the same names for TLS.
                yield f"{where}: has no effect without {' or '.join(needed)}"


def _suggest(name: str, known: Iterable[str]) -> str:
    """Return a clause with the most similar known name; empty if none is similar."""
    similar = nearest(name, *known)
    return "" if similar is None else f"; did you mean {similar!r}?"


def load_settings(config: Path | None = None, **arguments: Any) -> Settings:
    """Return the settings of a server, from a file and arguments; see `Configuration`."""
    return Configuration(config, arguments).load()


CLIENT_VARIABLES = frozenset(
    ENVIRONMENT_PREFIX + name
    for name in (
        *("DEBUG", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME"),
        *("TOKEN", "CLIENT_TOKEN_FILE", "LOGINS", "CLIENT_SECRET"),
    )
)
"""The variables that configure clients and commands, not servers."""
_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT(_\d+_(TCP|UDP|SCTP)(_|$)|$)")
"""Kubernetes sets such variables for a service that is itself named ``splitarrow``."""


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence about each ``SPLITARROW_…`` variable that has no meaning.

    Examples
    --------
    >>> unknown_variables({"SPLITARROW_WORKER": "2", "SPLITARROW_PORT": "tcp://10.0.0.1:8815"})
    ["SPLITARROW_WORKER: no such variable; did you mean 'SPLITARROW_WORKERS'?"]
    """
    names = [name for name in environ if name.startswith(ENVIRONMENT_PREFIX)]
    if not names:
        return []
    known = CLIENT_VARIABLES | {one.variable for one in declarations(Settings)}
    unknown = [name for name in names if name not in known and not _SERVICE_LINK.search(name)]
    return [_describe(name, known) for name in sorted(unknown)]


def _describe(name: str, known: Iterable[str]) -> str:
    # Without the prefix, which makes all of them similar.
    similar = nearest(*(each.removeprefix(ENVIRONMENT_PREFIX) for each in (name, *known)))
    if similar is None:
        return f"{name}: no such variable; unset it"
    return f"{name}: no such variable; did you mean '{ENVIRONMENT_PREFIX}{similar}'?"


_REGION_SETTINGS = (
    "shm_cache",
    "vortex_cache",
    "shm_copy",
    "shm_trust",
    "max_leased",
    "lease_seconds",
)
"""The settings of memory that readers map or read remotely."""
_TLS_ADDRESSES = (
    "a tcp+tls:// listener",
    "a grpc+tls:// control plane",
    "an https:// listener for HTTP",
)


def ineffective_settings(settings: Settings) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the name of each setting without effect, and what it needs: one of several things.

    Only settings that differ from their defaults count.
    """
    changed = [one for one in declarations(Settings) if getattr(settings, one.name) != one.default]
    for declaration in changed:
        needs = declaration.setting.needs
        if needs and not any(getattr(settings, name) for name in needs):
            yield declaration.name, needs
    names = {declaration.name for declaration in changed}
    uris = (*settings.listen, settings.control or "", settings.http or "")
    schemes = {uri.partition(":")[0].lower() for uri in uris}
    if "tls_cert" in names and not schemes & {"tcp+tls", "grpc+tls", "https"}:
        yield "tls_cert", _TLS_ADDRESSES
    for entry in settings.advertised.entries:
        if entry.scheme is not None and entry.scheme not in schemes:
            name = "advertise" if entry.network is None else "advertise_for"
            yield name, (f"a listener of the scheme {entry.scheme}",)
    if "shm_users" in names and "shm" not in schemes:
        yield "shm_users", ("an shm:// listener",)
    if not schemes & {"shm", "ucx"}:
        for name in _REGION_SETTINGS:
            if name in names:
                yield name, ("an shm:// listener", "a ucx:// listener")


def find_line(text: str, path: Sequence[str]) -> int | None:
    r"""Return the number of the line that sets a value, or None if no line does.

    The standard parser reports no positions. So this parses ever longer beginnings of the file:
    the statement that sets the value is the last one of the first beginning that has it.

    Examples
    --------
    >>> find_line('workers = 2\n\n[datasets]\ntrips = "trips/"\n', ["datasets", "trips"])
    4
    """
    lines = text.splitlines()
    start = 0
    for end, _ in enumerate(lines, 1):
        try:
            values = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue  # a statement of several lines is not complete
        if _has_value(values, path):
            statement = range(start, end)
            return 1 + next(at for at in statement if not _is_blank(lines[at]))
        start = end
    return None


def _has_value(values: Any, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return False
        values = cast("dict[str, Any]", values)[key]
    return True


def _is_blank(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")
