"""Requests of UCX whose results and statuses a test chooses."""

from __future__ import annotations

from typing import Any

from splitarrow.transport.ucx.ffi import ffi


class Library:
    """Takes the place of the library: requests are numbers, and so are their statuses."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.statuses: dict[Any, int] = {}
        self.freed: list[Any] = []
        self.calls: list[Any] = []

    def ucp_am_recv_data_nbx(
        self, worker: Any, data: bytes, target: Any, length: int, param: Any
    ) -> Any:
        ffi.memmove(target, data, length)
        return self.results.pop(0)

    def ucp_get_nbx(self, *arguments: Any) -> Any:
        self.calls.append(arguments)
        return self.results.pop(0)

    def ucp_request_check_status(self, request: Any) -> int:
        return self.statuses[request]

    def ucp_request_free(self, request: Any) -> None:
        self.freed.append(request)
