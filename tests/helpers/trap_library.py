"""UCX as it works on a host where it knows the device, whose memory the processor cannot touch."""

from __future__ import annotations

from typing import Any

from helpers.trap_device import TrapDevice
from splitarrow.transport.ucx.ffi import REQUEST_FIELD_DATATYPE, ffi


class TrapLibrary:
    """UCX as it works where it knows the device: it copies, and the processor does not.

    Parameters
    ----------
    device : TrapDevice
        The device.
    library : object
        The library, which gets the copies.
    """

    memory_type = 40

    def __init__(self, device: TrapDevice, library: Any) -> None:
        self._device = device
        self._library = library
        self._copies: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def ucp_tag_send_nbx(self, *arguments: Any) -> Any:
        return self._send(self._library.ucp_tag_send_nbx, *arguments)

    def ucp_tag_send_sync_nbx(self, *arguments: Any) -> Any:
        return self._send(self._library.ucp_tag_send_sync_nbx, *arguments)

    def _send(self, send: Any, endpoint: Any, data: Any, count: int, tag: int, param: Any) -> Any:
        if param.memory_type != self.memory_type:
            return send(endpoint, data, count, tag, param)
        spans = [(data, count)]
        if param.op_attr_mask & REQUEST_FIELD_DATATYPE:
            spans = [(data[index].buffer, data[index].length) for index in range(count)]
        contents = b"".join(
            self._device.read(int(ffi.cast("uintptr_t", address)), nbytes)
            for address, nbytes in spans
        )
        self._copies.append(ffi.from_buffer(contents))
        params = ffi.new("ucp_request_param_t *")
        return send(endpoint, self._copies[-1], len(contents), tag, params)
