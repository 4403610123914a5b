"""Handshake: a client sends a token or a password, and receives a token."""

from __future__ import annotations

import base64
import binascii

import anyio

from ...errors import InvalidRequestError, UnavailableError
from ...proto import Flight_pb2 as flight
from ..auth.principal import unauthenticated
from .call import Call, parse_message


class HandshakeHandler:
    """Serves Handshake, in the two forms that Flight clients use.

    - With HTTP basic authentication in the headers of the call, the response has a bearer token
      in its headers.
    - With a token as the payload of the first message, the response repeats the token.
    """

    async def handshake(self, call: Call) -> None:
        """Serve one handshake.

        Raises
        ------
        DeniedError
            If the token or password is wrong.
        InvalidRequestError
            If the message or the header is malformed.
        UnavailableError
            If the client sends no message in time.
        """
        scheme, _, credentials = call.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            await self._handshake_basic(call, credentials)
        else:
            await self._handshake_token(call)

    async def _handshake_basic(self, call: Call, credentials: str) -> None:
        try:
            decoded = base64.b64decode(credentials, validate=True).decode()
        except (binascii.Error, ValueError):
            raise InvalidRequestError("the Basic authorization header is malformed") from None
        username, _, password = decoded.partition(":")
        token = await call.server.access.exchange_password(username, password)
        await call.context.send_initial_metadata((("authorization", f"Bearer {token}"),))

    async def _handshake_token(self, call: Call) -> None:
        message: bytes | None = None
        seconds = call.server.settings.handshake_seconds
        with anyio.move_on_after(seconds) as scope:
            message = await call.read()
        if scope.cancelled_caught:
            raise UnavailableError(f"the client sent nothing for {seconds:g} s")
        payload = b""
        if message is not None:
            payload = parse_message(flight.HandshakeRequest, message).payload
        access = call.server.access
        if access.requires_token:
            await access.authenticate({"authorization": f"Bearer {_decode_token(payload)}"})
        await call.write(flight.HandshakeResponse(payload=payload).SerializeToString())


def _decode_token(payload: bytes) -> str:
    try:
        return payload.decode("ascii")
    except UnicodeDecodeError:
        raise unauthenticated("the token in the handshake must be ASCII") from None
