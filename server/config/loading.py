"""Build `ServerSettings` from arguments, ``SPLITARROW_…`` variables and a TOML file."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsConfigDict

from ...errors import ConfigError
from .declaration import ENVIRONMENT_PREFIX, nearest
from .effects import ineffective_settings
from .settings import ServerSettings
from .toml_lines import find_line
from .variables import unknown_variables

_TOML_POSITION = re.compile(r" \(at line (\d+), column \d+\)$")


@dataclass(frozen=True)
class Configuration:
    """The sources of a server's settings. They can be read again while the server runs.

    An argument wins over a variable, and a variable wins over the file. Only `datasets` is
    merged: the server serves those of all three.
    """

    file: Path | None = None
    """A TOML file. Its keys are the fields of `ServerSettings`."""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of `ServerSettings`. None is an argument that was not given."""
    uses_options: bool = False
    """Whether the arguments are options of the command line, and errors name them so."""

    def load(self) -> ServerSettings:
        """Return the settings.

        Raises
        ------
        ConfigError
            If the file cannot be read, or a setting is unknown, has an invalid value or has no
            effect. The error names every problem, with the file and line, variable or argument.
        """
        if self.file is not None and not self.file.is_file():
            raise ConfigError(f"{self.file}: the configuration file does not exist")
        problems = unknown_variables(os.environ)
        if problems:
            raise ConfigError("; ".join(problems))

        class Loaded(ServerSettings):
            model_config = SettingsConfigDict(toml_file=self.file, title=ServerSettings.__name__)

        try:
            loaded = Loaded(**self._given())
        except ValidationError as error:
            raise ConfigError(self._describe_all(error)) from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(self._describe_toml(str(error))) from None
        except (ValueError, OSError) as error:  # a variable that is not JSON, an unreadable file
            raise ConfigError(f"{self.file or 'environment'}: {error}") from None
        # Worker processes unpickle the settings, so they must not be of a local class.
        settings = ServerSettings.model_construct(**dict(loaded))
        problems = list(self._describe_ineffective(settings))
        if problems:
            raise ConfigError("; ".join(problems))
        return settings

    def locate(self, *path: str) -> str:
        """Return where a value is set: a file and its line, a variable, or an argument.

        Parameters
        ----------
        *path : str
            The name of the setting and, for a dataset, the name of the dataset.
        """
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

    def _describe_all(self, error: ValidationError) -> str:
        return "; ".join(self._describe(each) for each in error.errors())

    def _describe(self, error: ErrorDetails) -> str:
        path = [str(part) for part in error["loc"]] or ["settings"]
        reason = str(error["msg"]).removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            reason = "no such setting" + _suggest(path[0], ServerSettings.model_fields)
        elif error["type"] == "literal_error":
            choices = re.findall(r"'([^']+)'", error.get("ctx", {}).get("expected", ""))
            reason += _suggest(str(error["input"]), choices)
        return f"{self.locate(*path)}: {reason}"

    def _describe_toml(self, problem: str) -> str:
        position = _TOML_POSITION.search(problem)
        if position is None:
            return f"{self.file}: {problem}"
        return f"{self.file}, line {position.group(1)}: {problem[: position.start()]}"

    def _describe_ineffective(self, settings: ServerSettings) -> Iterator[str]:
        for name, needed in ineffective_settings(settings):
            where = self.locate(name)
            if not (name.startswith("tls_") and where.startswith(ENVIRONMENT_PREFIX)):
                # Clients have variables of the same names for TLS.
                yield f"{where}: has no effect without {' or '.join(needed)}"


def _suggest(name: str, known: Iterable[str]) -> str:
    """Return a clause with the most similar known name; empty if none is similar."""
    similar = nearest(name, *known)
    return "" if similar is None else f"; did you mean {similar!r}?"


def load_settings(config: Path | None = None, **arguments: Any) -> ServerSettings:
    """Return the settings of a server; see `Configuration`.

    Parameters
    ----------
    config : Path, optional
        A TOML file. Its keys are the fields of `ServerSettings`.
    **arguments
        Fields of `ServerSettings`. None is an argument that was not given.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a setting is unknown, has an invalid value or has no effect.
    """
    return Configuration(config, arguments).load()
