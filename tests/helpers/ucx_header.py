"""The constants of UCX's headers; `tests/transport/ucx/test_transport.py` compares them."""

from __future__ import annotations

from typing import Any

from splitarrow.transport.ucx.ffi import ffi


class Header:
    """What the headers of UCX define, by the names that they give it."""

    UCS_OK = 0
    UCS_INPROGRESS = 1
    UCS_ERR_NO_MEMORY = -4
    UCS_ERR_BUSY = -15
    UCS_ERR_CONNECTION_RESET = -25
    UCS_ERR_LAST = -100
    UCS_THREAD_MODE_SERIALIZED = 1
    UCS_MEMORY_TYPE_HOST = 0
    UCS_MEMORY_TYPE_CUDA = 1
    UCS_MEMORY_TYPE_CUDA_MANAGED = 2
    UCS_LOG_FUNC_RC_STOP = 0
    UCS_LOG_FUNC_RC_CONTINUE = 1
    UCP_PARAM_FIELD_FEATURES = 0x1
    UCP_PARAM_FIELD_MT_WORKERS_SHARED = 0x20
    UCP_FEATURE_TAG = 0x1
    UCP_FEATURE_RMA = 0x2
    UCP_FEATURE_WAKEUP = 0x10
    UCP_FEATURE_AM = 0x40
    UCP_ATTR_FIELD_MEMORY_TYPES = 0x4
    UCP_WORKER_PARAM_FIELD_THREAD_MODE = 0x1
    UCP_WORKER_PARAM_FIELD_EVENTS = 0x4
    UCP_WORKER_PARAM_FIELD_FLAGS = 0x20
    UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK = 0x1
    UCP_WAKEUP_RMA = 0x1
    UCP_WAKEUP_TAG_SEND = 0x4
    UCP_WAKEUP_TAG_RECV = 0x8
    UCP_WAKEUP_TX = 0x400
    UCP_WAKEUP_RX = 0x800
    UCP_AM_HANDLER_PARAM_FIELD_ID = 0x1
    UCP_AM_HANDLER_PARAM_FIELD_CB = 0x4
    UCP_AM_HANDLER_PARAM_FIELD_ARG = 0x8
    UCP_AM_RECV_ATTR_FLAG_DATA = 0x10000
    UCP_AM_RECV_ATTR_FLAG_RNDV = 0x20000
    UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE = 0x2
    UCP_EP_PARAM_FIELD_ERR_HANDLER = 0x4
    UCP_EP_PARAM_FIELD_SOCK_ADDR = 0x10
    UCP_EP_PARAM_FIELD_FLAGS = 0x20
    UCP_EP_PARAM_FIELD_CONN_REQUEST = 0x40
    UCP_EP_PARAMS_FLAGS_CLIENT_SERVER = 0x1
    UCP_ERR_HANDLING_MODE_PEER = 1
    UCP_EP_ATTR_FIELD_TRANSPORTS = 0x8
    UCP_EP_CLOSE_FLAG_FORCE = 0x1
    UCP_LISTENER_PARAM_FIELD_SOCK_ADDR = 0x1
    UCP_LISTENER_PARAM_FIELD_CONN_HANDLER = 0x4
    UCP_LISTENER_ATTR_FIELD_SOCKADDR = 0x1
    UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR = 0x1
    UCP_DATATYPE_IOV = 2
    UCP_MEM_MAP_PARAM_FIELD_ADDRESS = 0x1
    UCP_MEM_MAP_PARAM_FIELD_LENGTH = 0x2
    UCP_MEM_MAP_PARAM_FIELD_PROT = 0x8
    UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE = 0x10
    UCP_MEM_MAP_PROT_LOCAL_READ = 0x1
    UCP_MEM_MAP_PROT_REMOTE_READ = 0x100
    UCP_OP_ATTR_FIELD_DATATYPE = 0x8
    UCP_OP_ATTR_FIELD_FLAGS = 0x10
    UCP_OP_ATTR_FIELD_MEMORY_TYPE = 0x40


def list_header_constants() -> dict[str, int]:
    """Return the constants by their names."""
    return {name: value for name, value in vars(Header).items() if name.startswith("UC")}


def read_numbers(structure: Any) -> dict[str, int]:
    """Return the fields of a structure that are numbers other than 0."""
    fields = {name: getattr(structure, name) for name, _ in ffi.typeof(structure[0]).fields}
    return {name: value for name, value in fields.items() if isinstance(value, int) and value}


class Overlay:
    """A library, some of whose functions are replaced."""

    def __init__(self, library: Any, **functions: Any) -> None:
        self._library = library
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        return self._functions.get(name) or getattr(self._library, name)
