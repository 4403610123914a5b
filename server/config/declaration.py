"""The declaration of a setting: its help text, group and unit, with its type and bounds."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge
from pydantic import BeforeValidator, Field
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from ...formats.text import format_size, parse_size

ENVIRONMENT_PREFIX = "SPLITARROW_"


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
    """The documentation of a field of `Settings`. Annotate the field's type with it."""

    help: str
    """The description: plain text, with code in backticks."""
    group: Group
    metavar: str = ""
    """The value's name in help, which also shows its unit; empty for flags and choices."""
    default: str | None = None
    """The default in words, if the value itself does not show it."""
    negatable: bool = False
    """Whether a flag has the opposite ``--no-…`` too."""
    reload: Reload = Reload.RESTART
    """When a running daemon applies a change."""
    needs: tuple[str, ...] = ()
    """The settings of which at least one must be set. Otherwise this setting has no effect."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """A field of `Settings`, as command line and documentation present it."""

    name: str
    """The field's name, which is also its TOML key."""
    setting: Setting
    """Its documentation."""
    type: Any
    """The type of a value, without None: ``bool``, ``int``, ``float``, ``str``, ``Path``, a
    ``Literal``, ``tuple`` or ``dict``. It is ``str`` for a size."""
    is_size: bool
    """Whether it is a size in bytes, given as text such as ``4GiB``."""
    minimum: float | None
    """The least value, if there is one that is itself allowed."""
    default: Any
    """The default value."""

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
        if self.setting.default is not None or self.default is None or self.is_flag:
            return self.setting.default
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

    Raises `TypeError` if a field has no `Setting`.
    """
    for name, field in model.model_fields.items():
        yield _declaration(name, field)


def _declaration(name: str, field: FieldInfo) -> Declaration:
    kind, metadata = _unwrap(field.annotation, field.metadata)
    setting = next((one for one in metadata if isinstance(one, Setting)), None)
    if setting is None:
        raise TypeError(f"the setting {name} is not annotated with a Setting")
    is_size = any(isinstance(one, BeforeValidator) for one in metadata)
    minimum = next((one.ge for one in metadata if isinstance(one, Ge)), None)
    return Declaration(
        name=name,
        setting=setting,
        type=str if is_size else kind,
        is_size=is_size,
        minimum=None if is_size else minimum,  # pyright: ignore[reportArgumentType]
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
