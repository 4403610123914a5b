"""The library vortex-data, which the extra ``vortex`` installs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ...errors import InvalidDataError, MissingExtraError

_PANIC = "PanicException"


def import_vortex() -> Any:
    """Return the package ``vortex``.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        import_module("vortex.serde")
        return import_module("vortex")
    except ImportError as error:
        raise MissingExtraError(
            f"the format 'vortex' needs vortex-data ({error}); install it with "
            "pip install 'splitarrow[vortex]'"
        ) from None


@contextmanager
def translate_errors(action: str) -> Generator[None]:
    """Raise `InvalidDataError` for what the library raises, including its panics.

    A panic is a ``BaseException``, which would otherwise end the task or the process.

    Parameters
    ----------
    action : str
        What the library does, for the error: ``encode the array``.
    """
    try:
        yield
    except MemoryError:
        raise
    except (RuntimeError, ValueError, TypeError, KeyError, OSError) as error:
        raise InvalidDataError(f"Vortex cannot {action}: {_first_line(error)}") from None
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise InvalidDataError(f"Vortex cannot {action}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
