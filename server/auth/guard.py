"""Who asks: from the headers of a call to a principal."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import NoReturn

from ...errors import ConfigError, DeniedError
from .principal import Principal, unauthenticated
from .tokens import TokenFile
from .webtokens import WebTokens

HEADER = "authorization"
TOKEN_CHARACTERS = 16 << 10
"""The longest token, in characters."""
_TOKEN = re.compile(r"[!-~]+")

Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]
"""The headers, or the metadata, of a call."""


class Guard:
    """Tells principals by their tokens.

    Parameters
    ----------
    tokens : TokenFile, optional
        Bearer tokens with names.
    web_tokens : WebTokens, optional
        Tokens of an issuer.

    Raises
    ------
    ConfigError
        If there is neither.
    """

    def __init__(
        self, tokens: TokenFile | None = None, web_tokens: WebTokens | None = None
    ) -> None:
        if tokens is None and web_tokens is None:
            raise ConfigError("a guard needs a token file, or keys for JSON Web Tokens")
        self._tokens = tokens
        self._web_tokens = web_tokens

    def authenticate(self, headers: Headers) -> Principal:
        """Return who sent a call.

        ``Authorization: Bearer TOKEN`` is what counts. ``Basic`` is taken as well, with the
        token as the password: some clients can say nothing else.

        It may take seconds when keys are fetched from an issuer: call it on a worker thread.

        Parameters
        ----------
        headers : mapping, or iterable of pairs
            The names of headers, in any case, and their values.

        Raises
        ------
        DeniedError
            If there is no token, or it is not good, with the code UNAUTHENTICATED. The error
            quotes nothing of it.
        """
        token, name = _token(headers)
        return self._principal(token, name)

    def exchange(self, username: str, password: str) -> str:
        """Return the bearer token for a name and a password: the password itself is the token.

        Parameters
        ----------
        username : str
            The principal's name, or nothing.
        password : str
            The token.

        Raises
        ------
        DeniedError
            As `authenticate` does.
        """
        self._principal(_checked(password), username)
        return password

    def _principal(self, token: str, name: str) -> Principal:
        principal = None if self._tokens is None else self._tokens.principal(token)
        if principal is None and self._web_tokens is not None and token.count(".") == 2:
            principal = self._from_issuer(self._web_tokens, token)
        if principal is None or (name and name != principal.name):
            raise unauthenticated("this token is not known here")
        return principal

    @staticmethod
    def _from_issuer(web_tokens: WebTokens, token: str) -> Principal:
        keys = web_tokens.keys
        if keys.refresh_due:
            keys.refresh()
        try:
            return web_tokens.principal(token)
        except DeniedError:
            if not keys.refresh_due:
                raise
        keys.refresh()  # the token names a key that is not here: it may be a new one
        return web_tokens.principal(token)

    def __repr__(self) -> str:
        kinds = (("token file", self._tokens), ("JSON Web Tokens", self._web_tokens))
        return f"<Guard {' and '.join(kind for kind, given in kinds if given is not None)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a guard stays in its process; another makes its own from the settings")


def _token(headers: Headers) -> tuple[str, str]:
    """Return the token of a call, and the name that came with it, or an empty one."""
    pairs: Iterable[tuple[str, str | bytes]]
    pairs = headers.items() if isinstance(headers, Mapping) else headers  # type: ignore[assignment]
    values = [value for key, value in pairs if key.lower() == HEADER]
    if not values:
        raise unauthenticated("no token: send the header 'authorization: Bearer TOKEN'")
    if len(values) > 1:
        raise unauthenticated("more than one authorization header")
    value = values[0]
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    kind, _, token = text.strip().partition(" ")
    token, name = token.strip(), ""
    if kind.lower() == "basic":
        name, token = _basic(token)
    elif kind.lower() != "bearer":
        raise unauthenticated("the authorization header has to say 'Bearer TOKEN'")
    return _checked(token), name


def _checked(token: str) -> str:
    if len(token) > TOKEN_CHARACTERS:
        raise unauthenticated(f"a token has at most {TOKEN_CHARACTERS} characters")
    if not _TOKEN.fullmatch(token):
        raise unauthenticated("a token has visible ASCII characters only, one at least")
    return token


def _basic(text: str) -> tuple[str, str]:
    try:
        decoded = base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        raise unauthenticated("the Basic authorization header is malformed") from None
    name, _, token = decoded.partition(":")
    return name, token
