"""Handshake: a password or a token in, a token out."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import anyio
from anyio import to_thread

from ...errors import InvalidRequestError, UnavailableError
from ...proto import Flight_pb2 as flight
from ..auth.principal import unauthenticated
from .call import Call, parsed
from .ports import Guard, OpenGuard
from .reception import Reception


class Greeter:
    """Serves Handshake.

    A client shows a token as the payload, and gets it back if it is good. Or it shows a name
    and a password in a header, as HTTP's basic authentication does, and gets a bearer token in
    a header.

    Parameters
    ----------
    guard : Guard
        Who knows tokens, and perhaps passwords.
    reception : Reception
        Asks the guard.
    """

    def __init__(self, guard: Guard, reception: Reception) -> None:
        self._guard = guard
        self._reception = reception

    async def handshake(self, call: Call) -> None:
        """Answer one greeting.

        Raises
        ------
        DeniedError
            If it is not good.
        """
        message: bytes | None = None
        scheme, _, credentials = call.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            token = await self._exchanged(credentials)
            await call.context.send_initial_metadata((("authorization", f"Bearer {token}"),))
            return
        seconds = call.daemon.handshake_seconds
        with anyio.move_on_after(seconds) as scope:
            message = await call.read()
        if scope.cancelled_caught:
            raise UnavailableError(f"the client said nothing for {seconds:g} s")
        payload = b"" if message is None else parsed(flight.HandshakeRequest, message).payload
        if not isinstance(self._guard, OpenGuard):
            await self._reception.authenticate(_bearer(payload))
        await call.write(flight.HandshakeResponse(payload=payload).SerializeToString())

    async def _exchanged(self, credentials: str) -> str:
        exchange: Any = getattr(self._guard, "exchange", None)
        if exchange is None:
            raise unauthenticated("this server takes tokens, not passwords")
        try:
            decoded = base64.b64decode(credentials, validate=True).decode()
        except (binascii.Error, ValueError):
            raise InvalidRequestError("the authorization header is malformed") from None
        username, _, password = decoded.partition(":")
        return await to_thread.run_sync(exchange, username, password)


def _bearer(payload: bytes) -> dict[str, str]:
    try:
        return {"authorization": f"Bearer {payload.decode('ascii')}"}
    except UnicodeDecodeError:
        raise unauthenticated("the token is malformed") from None
