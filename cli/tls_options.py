"""The options about certificates, which all commands that connect share."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, TypeVar

from ..errors import UsageError
from .options import option, with_parameters

F = TypeVar("F", bound=Callable[..., Any])

PANEL = "TLS"
"""The heading of these options."""
_PREFIX = "SPLITARROW_"
_CERT, _KEY = "tls_cert", "tls_key"
_OPTIONS = {
    "tls_ca": ("FILE", "The authorities to trust, in PEM, instead of the system's."),
    _CERT: ("FILE", "Your certificate, in PEM, for servers that require one."),
    _KEY: ("FILE", "The key of your certificate, in PEM, unless --tls-cert contains it."),
    "tls_server_name": (
        "NAME",
        "The name that the server's certificate must have, instead of the host of the URI.",
    ),
}


def with_tls_options(command: F) -> F:
    """Add ``--tls-ca``, ``--tls-cert``, ``--tls-key`` and ``--tls-server-name`` to a command.

    While the command runs, they replace the ``SPLITARROW_TLS_…`` variables, from which every
    connection takes its certificates, also in the processes that the command starts.
    """

    @wraps(command)
    def run(*values: Any, **arguments: Any) -> Any:
        given = {name: arguments.pop(name, None) for name in _OPTIONS}
        with _environment(given):
            return command(*values, **arguments)

    own = signature(command, eval_str=True).parameters.values()
    decorated: Any = with_parameters([*own, *(_parameter(name) for name in _OPTIONS)])(run)
    return decorated


def _parameter(name: str) -> Parameter:
    metavar, help = _OPTIONS[name]
    declaration = option(help=help, default=f"${_variable(name)}", metavar=metavar, panel=PANEL)
    annotation = Annotated[str | None, declaration]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _variable(name: str) -> str:
    return _PREFIX + name.upper()


@contextmanager
def _environment(given: Mapping[str, str | None]) -> Generator[None]:
    """Set the variables of the options that are given, and restore them at the end.

    Raises `UsageError` if there is a key without a certificate.
    """
    changed = {_variable(name): value for name, value in given.items() if value}
    cert, key = _variable(_CERT), _variable(_KEY)
    if key in changed and not (changed.get(cert) or os.environ.get(cert)):
        raise UsageError("--tls-key needs --tls-cert")
    removed = [key] if cert in changed and key not in changed else []
    before = {name: os.environ.get(name) for name in (*changed, *removed)}
    os.environ.update(changed)
    for name in removed:
        os.environ.pop(name, None)  # it belongs to the certificate of the environment
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
