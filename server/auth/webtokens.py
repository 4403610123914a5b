"""JSON Web Tokens: who an issuer says somebody is, and which datasets they may use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...errors import ConfigError, DeniedError
from ..logs import get_logger
from .jwks import KeySource, joserfc
from .principal import Grants, Principal, globs_of, is_name, unauthenticated

ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "Ed25519",
)
"""Signatures that are taken: with public keys only, so that no verifier can make a token."""
_LEEWAY_SECONDS = 30


class WebTokens:
    """Checks JSON Web Tokens.

    The claim ``sub`` is the principal's name; ``datasets`` and ``write`` are lists of globs, or
    a string of them with spaces between. Without those claims nothing is granted.

    Parameters
    ----------
    keys : KeySource
        The issuer's public keys.
    issuer : str
        What the claim ``iss`` has to be.
    audience : str
        What the claim ``aud`` has to be or to hold: it keeps tokens away that the issuer made
        for other services.
    clock : callable
        The time in seconds since 1970.

    Raises
    ------
    ConfigError
        If issuer or audience is empty.
    MissingExtraError
        If joserfc is not installed.
    """

    def __init__(
        self,
        keys: KeySource,
        issuer: str,
        audience: str,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not issuer or not audience:
            raise ConfigError("JSON Web Tokens need an issuer and an audience to be checked for")
        jwt = joserfc("jwt")
        self.keys = keys
        """Where the issuer's keys come from."""
        self._decode = jwt.decode
        self._unknown_key: type[Exception] = joserfc("errors").InvalidKeyIdError
        self._expired: type[Exception] = joserfc("errors").ExpiredTokenError
        self._claims = jwt.JWTClaimsRegistry(
            now=lambda: int(clock()),
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            sub={"essential": True},
            exp={"essential": True},
        )

    def principal(self, token: str) -> Principal:
        """Return whom a token stands for.

        Raises
        ------
        DeniedError
            If it is not good, with the code UNAUTHENTICATED. The error quotes nothing of it.
        """
        try:
            claims = self._decode(token, self.keys.current(), algorithms=ALGORITHMS).claims
            self._claims.validate(claims)
            return _principal(claims)
        except DeniedError:
            raise
        except self._unknown_key:
            self.keys.missed()
            reason = "it is signed with a key that is not the issuer's"
        except self._expired:
            reason = "it has expired"
        except Exception as error:  # whatever a token makes a parser do, it is no good token
            kind = type(error).__name__
            get_logger("auth").debug("JSON Web Token refused", reason=kind)
            reason = "its signature or a claim is wrong"
        raise unauthenticated(f"this token is not good: {reason}")


def _principal(claims: dict[str, Any]) -> Principal:
    name = claims["sub"]
    if not is_name(name):
        raise unauthenticated("this token is not good: its claim sub is no name")
    grants: list[tuple[str, ...]] = []
    for claim in ("datasets", "write"):
        value = claims.get(claim, [])
        globs = globs_of(value.split() if isinstance(value, str) else value)
        if globs is None:
            raise unauthenticated(
                f"this token is not good: its claim {claim} is no list of names or globs"
            )
        grants.append(globs)
    return Principal(name, Grants(*grants))
