"""Authentication: from the headers of a call to a principal."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import NoReturn

from ...errors import ConfigError, DeniedError
from .jwt import JwtVerifier
from .principal import Principal, unauthenticated
from .token_file import TokenFile

HEADER = "authorization"
MAX_TOKEN_CHARACTERS = 16 << 10
"""The longest token, in characters."""
_TOKEN = re.compile(r"[!-~]+")

Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]
"""The headers of a call. Names may be in any case."""


class Authenticator:
    """Finds the principal that a token belongs to.

    Parameters
    ----------
    tokens : TokenFile, optional
        Bearer tokens and their principals.
    jwt_verifier : JwtVerifier, optional
        Verifies the JSON Web Tokens of an issuer.

    Raises
    ------
    ConfigError
        If both are missing.
    """

    def __init__(
        self, tokens: TokenFile | None = None, jwt_verifier: JwtVerifier | None = None
    ) -> None:
        if tokens is None and jwt_verifier is None:
            raise ConfigError("an authenticator needs a token file or keys for JSON Web Tokens")
        self._tokens = tokens
        self._jwt_verifier = jwt_verifier

    def authenticate(self, headers: Headers) -> Principal:
        """Return the principal that sent a call.

        The header is ``Authorization: Bearer TOKEN``. ``Basic`` works too, with the token as the
        password, for clients that support nothing else.

        Fetching an issuer's keys can take seconds: call this on a worker thread.

        Raises
        ------
        DeniedError
            With the code UNAUTHENTICATED, if the token is missing or invalid. The error never
            quotes the token.
        """
        token, name = _read_token(headers)
        return self._find_principal(token, name)

    def exchange_password(self, username: str, password: str) -> str:
        """Return the bearer token for a user name and password. The password is the token.

        Parameters
        ----------
        username : str
            The principal's name, or an empty string.
        password : str
            The token.

        Raises
        ------
        DeniedError
            As for `authenticate`.
        """
        self._find_principal(_check_token(password), username)
        return password

    def _find_principal(self, token: str, name: str) -> Principal:
        principal = None if self._tokens is None else self._tokens.find_principal(token)
        if principal is None and self._jwt_verifier is not None and token.count(".") == 2:
            principal = _verify_jwt(self._jwt_verifier, token)
        if principal is None or (name and name != principal.name):
            raise unauthenticated("this server does not know the token")
        return principal

    def __repr__(self) -> str:
        sources = (("token file", self._tokens), ("JSON Web Tokens", self._jwt_verifier))
        names = " and ".join(name for name, source in sources if source is not None)
        return f"<Authenticator {names}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an authenticator cannot be pickled: build one from the settings in each process"
        )


def _verify_jwt(verifier: JwtVerifier, token: str) -> Principal:
    """Verify a token, refreshing the issuer's keys first or after a failure where that is due."""
    keys = verifier.keys
    if keys.refresh_due:
        keys.refresh()
    try:
        return verifier.verify(token)
    except DeniedError:
        if not keys.refresh_due:
            raise
    keys.refresh()  # the issuer may have added the key that the token names
    return verifier.verify(token)


def _read_token(headers: Headers) -> tuple[str, str]:
    """Return the token and the user name of a call. Bearer tokens have an empty user name."""
    pairs: Iterable[tuple[str, str | bytes]]
    pairs = headers.items() if isinstance(headers, Mapping) else headers  # type: ignore[assignment]
    values = [value for key, value in pairs if key.lower() == HEADER]
    if not values:
        raise unauthenticated("no token: send the header 'authorization: Bearer TOKEN'")
    if len(values) > 1:
        raise unauthenticated("the call has more than one authorization header")
    value = values[0]
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    scheme, _, token = text.strip().partition(" ")
    token, name = token.strip(), ""
    if scheme.lower() == "basic":
        name, token = _decode_basic(token)
    elif scheme.lower() != "bearer":
        raise unauthenticated("the authorization header must be 'Bearer TOKEN'")
    return _check_token(token), name


def _check_token(token: str) -> str:
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise unauthenticated(
            f"the token has {len(token)} characters; the limit is {MAX_TOKEN_CHARACTERS}"
        )
    if not _TOKEN.fullmatch(token):
        raise unauthenticated("the token must be printable ASCII without spaces")
    return token


def _decode_basic(text: str) -> tuple[str, str]:
    try:
        decoded = base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        raise unauthenticated("the Basic authorization header is malformed") from None
    name, _, token = decoded.partition(":")
    return name, token
