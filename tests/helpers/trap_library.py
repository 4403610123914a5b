"""UCX as it works on a host where it knows the device, whose memory the processor cannot touch."""

from __future__ import annotations

from typing import Any

from helpers.trap_device import TrapDevice
from splitarrow.transport.ucx.ffi import IN_PROGRESS, NULL, REQUEST_FIELD_DATATYPE, ffi


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
        self._arrivals: dict[Any, tuple[int, Any]] = {}
        """Where the device gets what arrives, and the memory that it arrives in, by request."""
        self.received: list[int] = []
        """The sizes of the bodies that the device has received."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def ucp_tag_msg_recv_nbx(
        self, worker: Any, target: Any, count: int, message: Any, param: Any
    ) -> Any:
        receive = self._library.ucp_tag_msg_recv_nbx
        if param.memory_type != self.memory_type:
            return receive(worker, target, count, message, param)
        assert self._device.depth, "the device is not current"
        address, memory = int(ffi.cast("uintptr_t", target)), ffi.new("char[]", count)
        params = ffi.new("ucp_request_param_t *")
        request = receive(worker, memory, count, message, params)
        if request == NULL:
            self._deliver(address, memory)
        else:
            self._arrivals[request] = address, memory
        return request

    def ucp_request_check_status(self, request: Any) -> int:
        status: int = self._library.ucp_request_check_status(request)
        if status != IN_PROGRESS and request in self._arrivals:
            self._deliver(*self._arrivals.pop(request))
        return status

    def _deliver(self, address: int, memory: Any) -> None:
        self._device.write(address, bytes(ffi.buffer(memory)))
        self.received.append(len(memory))

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
