"""JSON Web Tokens: an issuer names a principal and the datasets that it may use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...errors import ConfigError, DeniedError
from ..logs import get_logger
from .jwks import KeySource, import_joserfc
from .principal import Grants, Principal, is_principal_name, parse_globs, unauthenticated

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
"""The accepted signatures. All use public keys, so that no verifier can forge a token."""


class JwtVerifier:
    """Verifies JSON Web Tokens.

    The claim ``sub`` is the principal's name. The claims ``datasets`` and ``write`` are its
    grants, each a list of globs or a string of globs separated by spaces. A missing claim grants
    nothing.

    Parameters
    ----------
    keys : KeySource
        The issuer's public keys.
    issuer : str
        The required value of the claim ``iss``.
    audience : str
        A required value of the claim ``aud``. It rejects tokens that the issuer made for other
        services.
    leeway_seconds : float
        How long a token is accepted after its expiry and before its claims ``nbf`` and ``iat``,
        in seconds. It allows for clocks that differ.
    clock : callable
        Returns the time in seconds since 1970.

    Raises
    ------
    ConfigError
        If the issuer or the audience is empty.
    MissingExtraError
        If joserfc is not installed.
    """

    def __init__(
        self,
        keys: KeySource,
        issuer: str,
        audience: str,
        *,
        leeway_seconds: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not issuer or not audience:
            raise ConfigError("JSON Web Tokens need an issuer and an audience to check")
        jwt = import_joserfc("jwt")
        errors = import_joserfc("errors")
        self.keys = keys
        """The issuer's public keys."""
        self._clock = clock
        self._leeway_seconds = leeway_seconds
        self._decode = jwt.decode
        self._unknown_key: type[Exception] = errors.InvalidKeyIdError
        self._expired: type[Exception] = errors.ExpiredTokenError
        self._claims = jwt.JWTClaimsRegistry(
            now=lambda: int(clock()),
            leeway=leeway_seconds,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
        )

    def verify(self, token: str) -> Principal:
        """Return the principal of a token.

        Raises
        ------
        DeniedError
            With the code UNAUTHENTICATED, if the token is invalid. The error never quotes it.
        """
        try:
            claims = self._decode(token, self.keys.current(), algorithms=ALGORITHMS).claims
            self._claims.validate(claims)
            # The library counts whole seconds.
            if self._clock() < claims["exp"] + self._leeway_seconds:
                return _read_principal(claims)
            reason = "it has expired"
        except DeniedError:
            raise
        except self._unknown_key:
            self.keys.report_unknown_key()
            reason = "its key is not one of the issuer's"
        except self._expired:
            reason = "it has expired"
        except Exception as error:  # the parsers raise many types for malformed tokens
            get_logger("auth").debug("JSON Web Token refused", reason=type(error).__name__)
            reason = "its signature or a claim is wrong"
        raise unauthenticated(f"the token is invalid: {reason}")


def _read_principal(claims: dict[str, Any]) -> Principal:
    name = claims.get("sub", "")
    if not is_principal_name(name):
        raise unauthenticated("the token is invalid: its claim sub must be short printable text")
    grants: list[tuple[str, ...]] = []
    for claim in ("datasets", "write"):
        value = claims.get(claim, [])
        globs = parse_globs(value.split() if isinstance(value, str) else value)
        if globs is None:
            raise unauthenticated(
                f"the token is invalid: its claim {claim} must be a list of names or globs"
            )
        grants.append(globs)
    return Principal(name, Grants(*grants))
