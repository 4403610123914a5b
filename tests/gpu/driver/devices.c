/* Initialization, devices, contexts, and what finds functions by their names. */
#include "driver.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STACK_DEPTH 64
#define VERSION 12090

struct context {
  int device, retained;
};

pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static struct context contexts[MAX_DEVICES];
static bool is_initialized, is_child;
static __thread struct context *stack[STACK_DEPTH];
static __thread int depth;

void misuse(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char text[512];
  int length = snprintf(text, sizeof text, "checking driver: process %d: ", getpid());
  length += vsnprintf(text + length, sizeof text - length - 1, format, arguments);
  va_end(arguments);
  text[length++] = '\n';
  if (write(STDERR_FILENO, text, length) < 0) { /* nobody reads it */ }
  abort();
}

long read_setting(const char *name, long otherwise) {
  const char *value = getenv(name);
  return value && *value ? strtol(value, NULL, 0) : otherwise;
}

static int device_count(void) {
  long count = read_setting("CHECKING_DRIVER_DEVICES", 1);
  return count < 0 ? 0 : count > MAX_DEVICES ? MAX_DEVICES : (int)count;
}

CUresult enter(void) {
  if (is_child || !is_initialized) return CUDA_ERROR_NOT_INITIALIZED;
  pthread_mutex_lock(&driver_lock);
  return CUDA_SUCCESS;
}

CUresult enter_context(int *device) {
  TRY(enter());
  *device = current_device();
  return *device < 0 ? leave(CUDA_ERROR_INVALID_CONTEXT) : CUDA_SUCCESS;
}

CUresult leave(CUresult result) {
  pthread_mutex_unlock(&driver_lock);
  return result;
}

int current_device(void) {
  struct context *top = depth ? stack[depth - 1] : NULL;
  return top && top->retained ? top->device : -1;
}

CUcontext context_of(int device) { return (CUcontext)&contexts[device]; }

static struct context *check_context(CUcontext handle) {
  for (int index = 0; index < device_count(); index++)
    if ((struct context *)handle == &contexts[index]) return &contexts[index];
  return NULL;
}

/* A fork copies the lock in the state that the thread which forks has given it. */
static void before_fork(void) { pthread_mutex_lock(&driver_lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&driver_lock); }
static void after_fork_in_child(void) {
  pthread_mutex_init(&driver_lock, NULL);
  if (!is_initialized) return;
  is_child = true;
  close_files_of_parent();
}

CUresult cuInit(unsigned flags) {
  if (is_child) return CUDA_ERROR_NOT_INITIALIZED;
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (!device_count()) return CUDA_ERROR_NO_DEVICE;
  pthread_mutex_lock(&driver_lock);
  if (!is_initialized) {
    for (int index = 0; index < MAX_DEVICES; index++) contexts[index].device = index;
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    is_initialized = true;
  }
  return leave(CUDA_SUCCESS);
}

CUresult cuDriverGetVersion(int *version) {
  *version = VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
  TRY(enter());
  *count = device_count();
  return leave(CUDA_SUCCESS);
}

static CUresult check_device(CUdevice device) {
  TRY(enter());
  if (device < 0 || device >= device_count()) return leave(CUDA_ERROR_INVALID_DEVICE);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  TRY(check_device(ordinal));
  *device = ordinal;
  return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
  TRY(check_device(device));
  snprintf(name, size, "checking driver %d", device);
  return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  TRY(check_device(device));
  memcpy(uuid->bytes, "checking driver\0", 16);
  uuid->bytes[15] = (char)device;
  return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }

CUresult cuDeviceTotalMem(size_t *nbytes, CUdevice device) {
  TRY(check_device(device));
  *nbytes = read_setting("CHECKING_DRIVER_MEMORY", 4l << 30);
  return leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  TRY(check_device(device));
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
      *value = read_setting("CHECKING_DRIVER_READ_ONLY_REGISTRATION", 1) != 0;
      break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = device + 1; break;
    default: *value = 0; /* no mapped virtual memory, no GPUDirect, no pools to share */
  }
  return leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  TRY(check_device(device));
  contexts[device].retained++;
  *context = context_of(device);
  return leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  TRY(check_device(device));
  if (!contexts[device].retained) return leave(CUDA_ERROR_INVALID_CONTEXT);
  if (--contexts[device].retained == 0) {
    drain_device(device);
    release_streams_of(device);
    release_memory_of(device);
  }
  return leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active) {
  TRY(check_device(device));
  *flags = 0;
  *is_active = contexts[device].retained > 0;
  return leave(CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent(CUcontext context) {
  TRY(enter());
  struct context *found = check_context(context);
  if (!found || !found->retained) return leave(CUDA_ERROR_INVALID_CONTEXT);
  if (depth == STACK_DEPTH) misuse("%d contexts are pushed on one thread", depth);
  stack[depth++] = found;
  return leave(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent(CUcontext *context) {
  TRY(enter());
  if (!depth) return leave(CUDA_ERROR_INVALID_CONTEXT);
  depth--;
  if (context) *context = (CUcontext)stack[depth];
  return leave(CUDA_SUCCESS);
}

CUresult cuCtxSetCurrent(CUcontext context) {
  TRY(enter());
  struct context *found = check_context(context);
  if (context && (!found || !found->retained)) return leave(CUDA_ERROR_INVALID_CONTEXT);
  if (!context) {
    if (depth) depth--;
  } else {
    if (!depth) depth = 1;
    stack[depth - 1] = found;
  }
  return leave(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  TRY(enter());
  *context = depth ? (CUcontext)stack[depth - 1] : NULL;
  return leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device) {
  int found;
  TRY(enter_context(&found));
  *device = found;
  return leave(CUDA_SUCCESS);
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
  int device;
  TRY(enter_context(&device));
  struct context *found = context ? check_context(context) : &contexts[device];
  if (!found) return leave(CUDA_ERROR_INVALID_CONTEXT);
  *id = found->device + 1;
  return leave(CUDA_SUCCESS);
}

CUresult cuCtxSynchronize(void) {
  int device;
  TRY(enter_context(&device));
  if (check_no_capture()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  drain_device(device);
  return leave(CUDA_SUCCESS);
}

static const struct {
  CUresult code;
  const char *name, *text;
} ERRORS[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
};

static CUresult describe(CUresult code, const char **text, bool by_name) {
  for (size_t index = 0; index < sizeof ERRORS / sizeof *ERRORS; index++)
    if (ERRORS[index].code == code) {
      *text = by_name ? ERRORS[index].name : ERRORS[index].text;
      return CUDA_SUCCESS;
    }
  *text = NULL;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult code, const char **text) { return describe(code, text, true); }
CUresult cuGetErrorString(CUresult code, const char **text) { return describe(code, text, false); }

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status) {
  static const char *const SUFFIXES[] = {"_v3", "_v2", ""};
  char name[128];
  Dl_info own;
  *function = NULL;
  if (dladdr(contexts, &own)) {
    void *library = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    for (int index = 0; library && index < 3 && !*function; index++) {
      snprintf(name, sizeof name, "%s%s", symbol, SUFFIXES[index]);
      void *found = dlsym(library, name);
      Dl_info info; /* dlsym also searches what the library depends on */
      if (found && dladdr(found, &info) && info.dli_fbase == own.dli_fbase) *function = found;
    }
    if (library) dlclose(library);
  }
  if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
