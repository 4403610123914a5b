"""The declaration of a setting: its help text, group and unit, with its type and bounds."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge
from pydantic import BeforeValidator, Field
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from ...formats.text import format_size, parse_size

ENVIRONMENT_PREFIX = "SPLITARROW_"
_KEY = "setting"
_METAVARS: dict[Any, str] = {int: "N", float: "SECONDS", Path: "FILE"}


def _size(value: Any) -> Any:
    return parse_size(value) if isinstance(value, str) else value


Seconds = Annotated[float, Field(ge=0)]
"""A time in seconds; 0 means at once."""
PositiveSeconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, BeforeValidator(_size), Field(ge=1)]
"""A size in bytes: a number, or text with a unit such as ``4GiB``."""
SizeOrZero = Annotated[int, BeforeValidator(_size), Field(ge=0)]


class Group(Enum):
    """A heading that help and documentation list settings under."""

    GENERAL = "General"
    CONTROL = "Control plane"
    DATA = "Data"
    PUBLISHED = "Published datasets"
    LIMITS = "Limits"
    SHARED_MEMORY = "Shared memory"
    SECURITY = "Security"
    LOG = "Log"


class Reload(Enum):
    """When a running daemon applies a change."""

    RESTART = "restart"
    """After a restart only."""
    RELOAD = "reload"
    """On a reload: SIGHUP, or ``splitarrow reload``."""
    CHANGE = "change"
    """On a reload, or when the named file changes: within a second of its next use."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What `setting` declares of a field besides its type, default and description."""

    group: Group
    metavar: str
    """The value's name in help, which also shows its unit; empty if it follows from the type."""
    shown: str | None
    """The default in words, if the value itself does not show it."""
    negatable: bool
    """Whether a flag has the opposite ``--no-…`` too."""
    needs: tuple[str, ...]
    """The settings of which at least one must be set. Otherwise this setting has no effect."""
    reload: Reload
    """When a running daemon applies a change."""


def setting(
    default: Any,
    group: Group,
    *,
    metavar: str = "",
    shown: str | None = None,
    negatable: bool = False,
    needs: tuple[str, ...] = (),
    reload: Reload = Reload.RESTART,
) -> Any:
    """Return a field of `Settings`; see `Setting`. The field's docstring is its description."""
    declared: Any = Setting(group, metavar, shown, negatable, needs, reload)
    return Field(default, json_schema_extra={_KEY: declared})


@dataclass(frozen=True, slots=True)
class Declaration:
    """A field of `Settings`, as command line and documentation present it."""

    name: str
    """The field's name, which is also its TOML key."""
    help: str
    """The description: plain text, with code in backticks."""
    setting: Setting
    type: Any
    """The type of a value, without None: ``bool``, ``int``, ``float``, ``str``, ``Path``, a
    ``Literal``, ``tuple`` or ``dict``. It is ``str`` for a size."""
    is_size: bool
    """Whether it is a size in bytes, given as text such as ``4GiB``."""
    minimum: float | None
    """The least value, if there is one that is itself allowed."""
    default: Any

    @property
    def metavar(self) -> str:
        """The value's name in help; empty for flags and choices."""
        if self.is_size:
            return "SIZE"
        return self.setting.metavar or _METAVARS.get(self.type, "")

    @property
    def flag(self) -> str:
        """The option of the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"{ENVIRONMENT_PREFIX}{self.name.upper()}"

    @property
    def is_flag(self) -> bool:
        """Whether it has no value on the command line."""
        return self.type is bool

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be given several times on the command line."""
        return get_origin(self.type) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """The values to choose from; empty if it is not a choice."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def default_text(self) -> str | None:
        """The default as text; None if there is nothing to show."""
        if self.setting.shown is not None or self.default is None or self.is_flag:
            return self.setting.shown
        if self.is_size:
            return format_size(self.default)
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


def nearest(name: str, *known: str) -> str | None:
    """Return the known name that is most similar to a name, or None if none is similar.

    Examples
    --------
    >>> nearest("worker", "listen", "workers")
    'workers'
    """
    return next(iter(get_close_matches(name, known, n=1)), None)


def declarations(model: type[BaseSettings]) -> Iterator[Declaration]:
    """Yield the declaration of each field of a settings model.

    Raises `TypeError` if a field is not declared with `setting`.
    """
    for name, field in model.model_fields.items():
        extra: Any = field.json_schema_extra or {}
        if _KEY not in extra:
            raise TypeError(f"{name} is not declared with setting()")
        kind, metadata = _unwrap(field.annotation, field.metadata)
        is_size = any(isinstance(one, BeforeValidator) for one in metadata)
        minimum: Any = next((one.ge for one in metadata if isinstance(one, Ge)), None)
        yield Declaration(
            name=name,
            help=" ".join((field.description or "").split()),
            setting=extra[_KEY],
            type=str if is_size else kind,
            is_size=is_size,
            minimum=None if is_size else minimum,
            default=field.default,
        )


def _unwrap(annotation: Any, metadata: list[Any]) -> tuple[Any, list[Any]]:
    """Return a type without ``None`` and ``Annotated``, and all of its metadata."""
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = (one for one in get_args(annotation) if one is not types.NoneType)
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        constraints = [one for each in more for one in _constraints(each)]
        return annotation, [*metadata, *constraints]
    return annotation, metadata


def _constraints(metadata: Any) -> list[Any]:
    return metadata.metadata if isinstance(metadata, FieldInfo) else [metadata]
