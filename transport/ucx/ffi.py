"""The library libucp through cffi, by default the one in the wheel ``libucx-cu12``.

Nothing is compiled at installation. The declarations below are the ones of version 1.21 that this
package uses, and the tests compare each structure with the headers by a C compiler.

The binding ucxx does not fit: it writes to ``os.environ`` when it is imported, hashes tags, and
lacks gathered sends and active messages without a header.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import cffi
import libucx

DECLARATIONS = """
typedef signed char ucs_status_t;
typedef void *ucs_status_ptr_t;
typedef struct ucp_context *ucp_context_h;
typedef struct ucp_config ucp_config_t;
typedef struct ucp_ep *ucp_ep_h;
typedef struct ucp_conn_request *ucp_conn_request_h;
typedef struct ucp_address ucp_address_t;
typedef struct ucp_listener *ucp_listener_h;
typedef struct ucp_worker *ucp_worker_h;
typedef struct ucp_mem *ucp_mem_h;
typedef struct ucp_rkey *ucp_rkey_h;
typedef struct ucp_recv_desc *ucp_tag_message_h;
typedef uint64_t ucp_tag_t;

struct sockaddr_storage { unsigned short ss_family; char data[118]; uint64_t align; };
typedef struct { const void *addr; uint32_t addrlen; } ucs_sock_addr_t;
typedef struct { uint64_t bits[16]; } ucs_cpu_set_t;

typedef struct {
    uint64_t field_mask;
    uint64_t features;
    size_t request_size;
    void *request_init;
    void *request_cleanup;
    uint64_t tag_sender_mask;
    int mt_workers_shared;
    size_t estimated_num_eps;
    size_t estimated_num_ppn;
    const char *name;
    size_t node_local_id;
} ucp_params_t;

typedef struct {
    uint64_t field_mask;
    size_t request_size;
    int thread_mode;
    uint64_t memory_types;
    char name[32];
    size_t device_counter_size;
} ucp_context_attr_t;

typedef struct {
    uint64_t field_mask;
    int thread_mode;
    ucs_cpu_set_t cpu_mask;
    unsigned events;
    void *user_data;
    int event_fd;
    uint64_t flags;
    const char *name;
    size_t am_alignment;
    uint64_t client_id;
} ucp_worker_params_t;

typedef void (*ucp_err_handler_cb_t)(void *arg, ucp_ep_h ep, ucs_status_t status);
typedef struct { ucp_err_handler_cb_t cb; void *arg; } ucp_err_handler_t;

typedef struct {
    uint64_t field_mask;
    const ucp_address_t *address;
    int err_mode;
    ucp_err_handler_t err_handler;
    void *user_data;
    unsigned flags;
    ucs_sock_addr_t sockaddr;
    ucp_conn_request_h conn_request;
    const char *name;
    ucs_sock_addr_t local_sockaddr;
} ucp_ep_params_t;

typedef struct { const char *transport_name; const char *device_name; } ucp_transport_entry_t;
typedef struct {
    ucp_transport_entry_t *entries;
    unsigned num_entries;
    size_t entry_size;
} ucp_transports_t;
typedef struct {
    uint64_t field_mask;
    char name[32];
    struct sockaddr_storage local_sockaddr;
    struct sockaddr_storage remote_sockaddr;
    ucp_transports_t transports;
    void *user_data;
} ucp_ep_attr_t;

typedef void (*ucp_listener_conn_callback_t)(ucp_conn_request_h request, void *arg);
typedef struct { void *cb; void *arg; } ucp_listener_accept_handler_t;
typedef struct { ucp_listener_conn_callback_t cb; void *arg; } ucp_listener_conn_handler_t;
typedef struct {
    uint64_t field_mask;
    ucs_sock_addr_t sockaddr;
    ucp_listener_accept_handler_t accept_handler;
    ucp_listener_conn_handler_t conn_handler;
} ucp_listener_params_t;
typedef struct { uint64_t field_mask; struct sockaddr_storage sockaddr; } ucp_listener_attr_t;
typedef struct {
    uint64_t field_mask;
    struct sockaddr_storage client_address;
    uint64_t client_id;
} ucp_conn_request_attr_t;

typedef struct { ucp_tag_t sender_tag; size_t length; } ucp_tag_recv_info_t;
typedef struct { void *buffer; size_t length; } ucp_dt_iov_t;
typedef struct {
    uint32_t op_attr_mask;
    uint32_t flags;
    void *request;
    void *cb;
    uint64_t datatype;
    void *user_data;
    void *reply_buffer;
    int memory_type;
    void *recv_info;
    ucp_mem_h memh;
    uint64_t later[4];
} ucp_request_param_t;

typedef struct {
    uint64_t field_mask;
    void *address;
    size_t length;
    unsigned flags;
    unsigned prot;
    int memory_type;
    const void *exported_memh_buffer;
} ucp_mem_map_params_t;

typedef struct { uint64_t recv_attr; ucp_ep_h reply_ep; } ucp_am_recv_param_t;
typedef ucs_status_t (*ucp_am_recv_callback_t)(void *arg, const void *header,
    size_t header_length, void *data, size_t length, const ucp_am_recv_param_t *param);
typedef struct {
    uint64_t field_mask;
    unsigned id;
    uint32_t flags;
    ucp_am_recv_callback_t cb;
    void *arg;
} ucp_am_handler_param_t;

const char *ucp_get_version_string(void);
ucs_status_t ucp_config_read(const char *prefix, const char *filename, ucp_config_t **config);
void ucp_config_release(ucp_config_t *config);
ucs_status_t ucp_config_modify(ucp_config_t *config, const char *name, const char *value);
ucs_status_t ucp_init_version(unsigned major, unsigned minor, const ucp_params_t *params,
    const ucp_config_t *config, ucp_context_h *context);
ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t *attr);
void ucp_cleanup(ucp_context_h context);
ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t *params,
    ucp_worker_h *worker);
void ucp_worker_destroy(ucp_worker_h worker);
unsigned ucp_worker_progress(ucp_worker_h worker);
ucs_status_t ucp_worker_get_efd(ucp_worker_h worker, int *fd);
ucs_status_t ucp_worker_arm(ucp_worker_h worker);
ucs_status_t ucp_listener_create(ucp_worker_h worker, const ucp_listener_params_t *params,
    ucp_listener_h *listener);
void ucp_listener_destroy(ucp_listener_h listener);
ucs_status_t ucp_listener_query(ucp_listener_h listener, ucp_listener_attr_t *attr);
ucs_status_t ucp_listener_reject(ucp_listener_h listener, ucp_conn_request_h request);
ucs_status_t ucp_conn_request_query(ucp_conn_request_h request, ucp_conn_request_attr_t *attr);
ucs_status_t ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *ep);
ucs_status_t ucp_ep_query(ucp_ep_h ep, ucp_ep_attr_t *attr);
ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *param);
ucs_status_ptr_t ucp_ep_flush_nbx(ucp_ep_h ep, const ucp_request_param_t *param);
ucs_status_t ucp_worker_set_am_recv_handler(ucp_worker_h worker,
    const ucp_am_handler_param_t *param);
ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header,
    size_t header_length, const void *buffer, size_t count, const ucp_request_param_t *param);
ucs_status_ptr_t ucp_am_recv_data_nbx(ucp_worker_h worker, void *data_desc, void *buffer,
    size_t count, const ucp_request_param_t *param);
void ucp_am_data_release(ucp_worker_h worker, void *data);
ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h ep, const void *buffer, size_t count, ucp_tag_t tag,
    const ucp_request_param_t *param);
ucs_status_ptr_t ucp_tag_send_sync_nbx(ucp_ep_h ep, const void *buffer, size_t count,
    ucp_tag_t tag, const ucp_request_param_t *param);
ucp_tag_message_h ucp_tag_probe_nb(ucp_worker_h worker, ucp_tag_t tag, ucp_tag_t tag_mask,
    int remove, ucp_tag_recv_info_t *info);
ucs_status_ptr_t ucp_tag_msg_recv_nbx(ucp_worker_h worker, void *buffer, size_t count,
    ucp_tag_message_h message, const ucp_request_param_t *param);
ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
    ucp_mem_h *memh);
ucs_status_t ucp_mem_unmap(ucp_context_h context, ucp_mem_h memh);
ucs_status_t ucp_rkey_pack(ucp_context_h context, ucp_mem_h memh, void **buffer, size_t *size);
void ucp_rkey_buffer_release(void *buffer);
ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h ep, const void *buffer, ucp_rkey_h *rkey);
void ucp_rkey_destroy(ucp_rkey_h rkey);
ucs_status_ptr_t ucp_get_nbx(ucp_ep_h ep, void *buffer, size_t count, uint64_t remote_addr,
    ucp_rkey_h rkey, const ucp_request_param_t *param);
ucs_status_t ucp_request_check_status(void *request);
void ucp_request_cancel(ucp_worker_h worker, void *request);
void ucp_request_free(void *request);
"""
_UCS_DECLARATIONS = """
const char *ucs_status_string(ucs_status_t status);
typedef int (*ucs_log_func_t)(const char *file, unsigned line, const char *function, int level,
    const void *component, const char *format, void *arguments);
void ucs_log_push_handler(ucs_log_func_t handler);
ucs_status_t ucs_global_opts_set_value(const char *name, const char *value);
"""
# On the platforms of the wheel, a va_list is passed as a pointer.
_LIBC_DECLARATIONS = """
int vsnprintf(char *text, size_t size, const char *format, void *arguments);
struct timespec { long tv_sec; long tv_nsec; };
struct itimerspec { struct timespec it_interval; struct timespec it_value; };
int timerfd_create(int clock, int flags);
int timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old);
"""

PREFER_SYSTEM = "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY"
"""The environment variable by which the wheel, too, prefers the library of the system."""
API_MAJOR, API_MINOR = 1, 21
OK = 0
IN_PROGRESS = 1
ERR_BUSY = -15
ERR_CONNECTION_RESET = -25
REQUEST_FIELD_FLAGS = 1 << 4
REQUEST_FIELD_DATATYPE = 1 << 3
REQUEST_FIELD_MEMORY_TYPE = 1 << 6
"""Bits of ``ucp_request_param_t.op_attr_mask``."""

ffi: Any = cffi.FFI()
ffi.cdef(DECLARATIONS + _UCS_DECLARATIONS + _LIBC_DECLARATIONS)


def _load(name: str) -> Any:
    """Load a library: that of the system if `PREFER_SYSTEM` is set, otherwise that of the wheel."""
    libucx.load_library()
    if os.environ.get(PREFER_SYSTEM, "false").lower() != "false":
        with contextlib.suppress(OSError):
            return ffi.dlopen(name)
    for folder in libucx.__path__:
        path = os.path.join(folder, "lib", name)
        if os.path.isfile(path):
            return ffi.dlopen(path)
    return ffi.dlopen(name)


ucp: Any = _load("libucp.so")
ucs: Any = _load("libucs.so")
libc: Any = ffi.dlopen(None)
NULL: Any = ffi.NULL


def version() -> str:
    """Return the version of the library."""
    return ffi.string(ucp.ucp_get_version_string()).decode()


def describe(status: int) -> str:
    """Return the library's description of a status."""
    return ffi.string(ucs.ucs_status_string(status)).decode().rstrip(".").lower()


def get_status(pointer: Any) -> int:
    """Return the status that a returned pointer encodes; `IN_PROGRESS` if it is a request."""
    value = int(ffi.cast("intptr_t", pointer))
    return value if -100 <= value <= 0 else IN_PROGRESS


class StatusError(Exception):
    """A message could not be sent or received. It never leaves this package."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
        """The status that the library reported."""
