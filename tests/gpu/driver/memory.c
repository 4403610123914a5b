/* Memory of devices, page-locked memory, and memory of other processes. */
#include "driver.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096ul
#define ALIGNED 512ul /* CUDA aligns to 256 bytes at least, and not to pages */
#define DEVICE_SPACE (1ul << 42)
#define HOST_SPACE (1ul << 40)
#define FRESH 0xA5
#define NAME "device memory %lu" /* by the number of the area */

static struct area *areas;
static uint64_t used[MAX_DEVICES], last_id;
static long live[KINDS];

/* Addresses, which are handed out in order and never again. */
struct space {
  uint64_t begin, end, size;
};
static struct space device_space = {.size = DEVICE_SPACE}, host_space = {.size = HOST_SPACE};

static uint64_t take_addresses(struct space *space, uint64_t nbytes, uint64_t alignment) {
  if (!space->begin) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *memory = mmap(NULL, space->size, PROT_NONE, flags, -1, 0);
    if (memory == MAP_FAILED) misuse("no addresses are left: %s", strerror(errno));
    space->begin = space->end = (uint64_t)memory;
  }
  uint64_t begin = (space->end + alignment - 1) / alignment * alignment;
  /* What lies between two allocations belongs to neither. */
  space->end = begin + nbytes + ALIGNED;
  if (space->end > space->begin + space->size) misuse("no addresses are left");
  return begin;
}

struct area *find_area(uint64_t address) {
  for (struct area *area = areas; area; area = area->next)
    if (area->begin <= address && address < area->begin + area->size) return area;
  return NULL;
}

bool is_pageable(struct area *area) { return area == NULL; }

static struct area *add_area(enum kind kind, int device, uint64_t begin, uint64_t size, char *data,
                             int file) {
  struct area *area = calloc(1, sizeof *area);
  *area = (struct area){.kind = kind, .device = device, .begin = begin, .size = size,
                        .id = ++last_id, .data = data, .file = file, .next = areas};
  areas = area;
  live[kind] += size > 1;
  return area;
}

static void remove_area(struct area *area) {
  struct area **link = &areas;
  while (*link != area) link = &(*link)->next;
  *link = area->next;
  live[area->kind] -= area->size > 1;
  if (area->file >= 0) {
    munmap(area->data, area->size);
    close(area->file);
  }
  if (area->kind == PINNED || area->kind == MANAGED) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    uint64_t size = (area->size + PAGE - 1) / PAGE * PAGE;
    mmap((void *)area->begin, size, PROT_NONE, flags, -1, 0); /* later accesses trap */
  }
  if (area->kind == DEVICE || area->kind == POOL || area->kind == MANAGED)
    used[area->device] -= area->size;
  free(area);
}

static CUresult allocate_on_device(CUdeviceptr *address, size_t nbytes, enum kind kind) {
  int device;
  TRY(enter_context(&device));
  if (check_capture()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  uint64_t limit = read_setting("CHECKING_DRIVER_MEMORY", 4l << 30);
  if (!nbytes) return leave(CUDA_ERROR_INVALID_VALUE);
  if (used[device] + nbytes > limit) return leave(CUDA_ERROR_OUT_OF_MEMORY);
  char name[32];
  snprintf(name, sizeof name, NAME, last_id + 1);
  int file = memfd_create(name, MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, nbytes)) {
    if (file >= 0) close(file);
    return leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  char *data = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) {
    close(file);
    return leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  memset(data, FRESH, nbytes);
  *address = take_addresses(&device_space, nbytes, ALIGNED);
  add_area(kind, device, *address, nbytes, data, file);
  used[device] += nbytes;
  return leave(CUDA_SUCCESS);
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t nbytes) {
  return allocate_on_device(address, nbytes, DEVICE);
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t nbytes, CUstream stream) {
  return allocate_on_device(address, nbytes, POOL);
}

static char *map_host(size_t nbytes, uint64_t *address) {
  uint64_t size = (nbytes + PAGE - 1) / PAGE * PAGE;
  *address = take_addresses(&host_space, size, PAGE);
  char *data = (char *)*address;
  if (mprotect(data, size, PROT_READ | PROT_WRITE)) return NULL;
  memset(data, FRESH, nbytes);
  return data;
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t nbytes, unsigned flags) {
  int device;
  TRY(enter_context(&device));
  char *data = nbytes ? map_host(nbytes, (uint64_t *)address) : NULL;
  if (!data) return leave(CUDA_ERROR_INVALID_VALUE);
  add_area(MANAGED, device, *address, nbytes, data, -1);
  used[device] += nbytes;
  return leave(CUDA_SUCCESS);
}

/* Other processes hold a shared lock on the file of memory that they have opened. */
static bool is_open_elsewhere(struct area *area) {
  if (area->kind != DEVICE) return false;
  if (flock(area->file, LOCK_EX | LOCK_NB)) return true;
  flock(area->file, LOCK_UN);
  return false;
}

static void check_free(struct area *area, const char *function) {
  if (is_used_by_queue(area)) misuse("%s(%#lx): a copy is queued", function, area->begin);
  if (is_open_elsewhere(area))
    misuse("%s(%#lx): another process has the memory open", function, area->begin);
}

static CUresult free_on_device(CUdeviceptr address, const char *function) {
  int device;
  if (!address) return CUDA_SUCCESS;
  TRY(enter_context(&device));
  if (check_capture()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  struct area *area = find_area(address);
  bool is_whole = area && area->begin == address && area->kind <= MANAGED;
  if (!is_whole) misuse("%s(%#llx): no allocation begins there", function, address);
  check_free(area, function);
  remove_area(area);
  return leave(CUDA_SUCCESS);
}

CUresult cuMemFree(CUdeviceptr address) { return free_on_device(address, "cuMemFree"); }

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return free_on_device(address, "cuMemFreeAsync");
}

CUresult cuMemGetInfo(size_t *available, size_t *total) {
  int device;
  TRY(enter_context(&device));
  *total = read_setting("CHECKING_DRIVER_MEMORY", 4l << 30);
  *available = *total - used[device];
  return leave(CUDA_SUCCESS);
}

CUresult cuMemGetAddressRange(CUdeviceptr *begin, size_t *size, CUdeviceptr address) {
  int device;
  TRY(enter_context(&device));
  struct area *area = find_area(address);
  if (!area || area->kind == PINNED || area->kind == REGISTERED)
    return leave(CUDA_ERROR_NOT_FOUND);
  if (begin) *begin = area->begin;
  if (size) *size = area->size;
  return leave(CUDA_SUCCESS);
}

CUresult cuMemHostAlloc(void **address, size_t nbytes, unsigned flags) {
  int device;
  TRY(enter_context(&device));
  if (check_capture()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (!nbytes) return leave(CUDA_ERROR_INVALID_VALUE);
  uint64_t found;
  char *data = map_host(nbytes, &found);
  if (!data) return leave(CUDA_ERROR_OUT_OF_MEMORY);
  add_area(PINNED, device, found, nbytes, data, -1);
  *address = data;
  return leave(CUDA_SUCCESS);
}

CUresult cuMemAllocHost(void **address, size_t nbytes) { return cuMemHostAlloc(address, nbytes, 0); }

CUresult cuMemFreeHost(void *address) {
  int device;
  TRY(enter_context(&device));
  if (check_capture()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  struct area *area = find_area((uint64_t)address);
  if (!area || area->kind != PINNED || area->begin != (uint64_t)address)
    misuse("cuMemFreeHost(%p): no allocation begins there", address);
  check_free(area, "cuMemFreeHost");
  remove_area(area);
  return leave(CUDA_SUCCESS);
}

/* Return whether the process may read the pages, and write them if required. */
static bool are_mapped(uint64_t begin, uint64_t end, bool writable) {
  FILE *maps = fopen("/proc/self/maps", "re");
  if (!maps) return false;
  char line[512];
  while (begin < end && fgets(line, sizeof line, maps)) {
    unsigned long first, last;
    char rights[5];
    if (sscanf(line, "%lx-%lx %4s", &first, &last, rights) != 3) continue;
    if (first <= begin && begin < last && rights[0] == 'r' && (!writable || rights[1] == 'w'))
      begin = last;
  }
  fclose(maps);
  return begin >= end;
}

CUresult cuMemHostRegister(void *address, size_t nbytes, unsigned flags) {
  int device;
  TRY(enter_context(&device));
  if (check_capture()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  bool read_only = flags & CU_MEMHOSTREGISTER_READ_ONLY;
  uint64_t begin = (uint64_t)address, end = begin + nbytes;
  if (!nbytes) return leave(CUDA_ERROR_INVALID_VALUE);
  if (read_only && !read_setting("CHECKING_DRIVER_READ_ONLY_REGISTRATION", 1))
    return leave(CUDA_ERROR_NOT_SUPPORTED);
  for (struct area *area = areas; area; area = area->next)
    if (area->begin < end && begin < area->begin + area->size)
      return leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  if (!are_mapped(begin, end, !read_only)) return leave(CUDA_ERROR_INVALID_VALUE);
  add_area(REGISTERED, device, begin, nbytes, address, -1);
  return leave(CUDA_SUCCESS);
}

CUresult cuMemHostUnregister(void *address) {
  int device;
  TRY(enter_context(&device));
  if (check_capture()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  struct area *area = find_area((uint64_t)address);
  if (!area || area->kind != REGISTERED || area->begin != (uint64_t)address)
    return leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  check_free(area, "cuMemHostUnregister");
  if (!are_mapped(area->begin, area->begin + area->size, false))
    misuse("cuMemHostUnregister(%p): the memory was unmapped before", address);
  remove_area(area);
  return leave(CUDA_SUCCESS);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *result, void *address, unsigned flags) {
  int device;
  TRY(enter_context(&device));
  struct area *area = find_area((uint64_t)address);
  if (!area || (area->kind != PINNED && area->kind != REGISTERED))
    return leave(CUDA_ERROR_INVALID_VALUE);
  *result = (CUdeviceptr)address;
  return leave(CUDA_SUCCESS);
}

static bool is_host(struct area *area) { return area->kind == PINNED || area->kind == REGISTERED; }

static CUresult get_attribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
  struct area *area = find_area(address);
  if (!area) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)value = context_of(area->device); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned *)value = is_host(area) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = address; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!is_host(area) && area->kind != MANAGED) return CUDA_ERROR_INVALID_VALUE;
      *(void **)value = (void *)address;
      break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)value = area->id; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)value = area->kind == MANAGED; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = area->device; break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *(unsigned *)value = area->kind == DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)value = area->begin; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = area->size; break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)value = 1; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(unsigned long long *)value = 0; break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *(void **)value = area->kind == POOL ? (void *)&areas : NULL;
      break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)value = 0; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
  TRY(enter());
  return leave(get_attribute(value, attribute, address));
}

/* For memory that CUDA does not know, this function returns zeros and no error. */
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values,
                                CUdeviceptr address) {
  TRY(enter());
  for (unsigned index = 0; index < count; index++) {
    bool is_wide = true;
    switch (attributes[index]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      case CU_POINTER_ATTRIBUTE_MAPPED: is_wide = false; break;
      default: break;
    }
    memset(values[index], 0, is_wide ? 8 : 4);
    if (!find_area(address) && attributes[index] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
      *(int *)values[index] = -2;
    get_attribute(values[index], attributes[index], address);
  }
  return leave(CUDA_SUCCESS);
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address) {
  TRY(enter());
  return leave(find_area(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemRangeGetAttribute(void *data, size_t size, CUmem_range_attribute attribute,
                                CUdeviceptr address, size_t count) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

/* The contents of a handle. */
struct handle {
  char magic[8];
  int32_t process, file, device;
  uint64_t size, id;
};
static const char MAGIC[8] = "chk-ipc";

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
  int device;
  TRY(enter_context(&device));
  struct area *area = find_area(address);
  if (!area || area->kind != DEVICE) return leave(CUDA_ERROR_INVALID_VALUE);
  struct handle found = {.process = getpid(), .file = area->file, .device = area->device,
                         .size = area->size, .id = area->id};
  memcpy(found.magic, MAGIC, sizeof MAGIC);
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &found, sizeof found);
  return leave(CUDA_SUCCESS);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
  int device;
  TRY(enter_context(&device));
  if (check_capture()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  struct handle wanted;
  memcpy(&wanted, &handle, sizeof wanted);
  if (memcmp(wanted.magic, MAGIC, sizeof MAGIC)) return leave(CUDA_ERROR_INVALID_VALUE);
  if (wanted.process == getpid()) return leave(CUDA_ERROR_INVALID_CONTEXT);
  if (wanted.device != device) return leave(CUDA_ERROR_INVALID_VALUE);
  for (struct area *area = areas; area; area = area->next)
    if (area->kind == OPENED && !memcmp(&area->handle, &handle, sizeof handle)) {
      area->opens++;
      *address = area->begin;
      return leave(CUDA_SUCCESS);
    }
  char path[64], expected[64], link[64] = "";
  struct stat facts;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", wanted.process, wanted.file);
  snprintf(expected, sizeof expected, "/memfd:" NAME " (deleted)", wanted.id);
  if (readlink(path, link, sizeof link - 1) < 0 || strcmp(link, expected))
    return leave(CUDA_ERROR_INVALID_VALUE);
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return leave(CUDA_ERROR_INVALID_VALUE);
  if (fstat(file, &facts) || (uint64_t)facts.st_size != wanted.size || flock(file, LOCK_SH | LOCK_NB)) {
    close(file);
    return leave(CUDA_ERROR_INVALID_VALUE);
  }
  char *data = mmap(NULL, wanted.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) {
    close(file);
    return leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *address = take_addresses(&device_space, wanted.size, ALIGNED);
  struct area *area = add_area(OPENED, device, *address, wanted.size, data, file);
  area->handle = handle;
  area->opens = 1;
  return leave(CUDA_SUCCESS);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  int device;
  TRY(enter_context(&device));
  if (check_capture()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  struct area *area = find_area(address);
  if (!area || area->kind != OPENED || area->begin != address)
    misuse("cuIpcCloseMemHandle(%#llx): no opened memory begins there", address);
  if (--area->opens == 0) {
    check_free(area, "cuIpcCloseMemHandle");
    remove_area(area);
  }
  return leave(CUDA_SUCCESS);
}

void release_memory_of(int device) {
  for (struct area *area = areas, *next; area; area = next) {
    next = area->next;
    if (area->device == device) remove_area(area);
  }
}

/* A child of a fork has no use for the memory, and must not keep it open. */
void close_files_of_parent(void) {
  for (struct area *area = areas; area; area = area->next)
    if (area->file >= 0) close(area->file);
  areas = NULL;
}

/* For tests: the number of areas of a kind, and access as a kernel on the device has it. UCX tries
 * once whether it can allocate a byte, on any thread. It cannot free it where no context is current,
 * so areas of one byte do not count. */
long checking_driver_count(int kind) { return kind >= 0 && kind < KINDS ? live[kind] : -1; }

static int access_memory(uint64_t address, char *bytes, size_t nbytes, bool writes) {
  TRY(enter());
  struct area *area = find_area(address);
  if (!area || address + nbytes > area->begin + area->size) return leave(CUDA_ERROR_INVALID_VALUE);
  char *data = area->data + (address - area->begin);
  memcpy(writes ? data : bytes, writes ? bytes : data, nbytes);
  return leave(CUDA_SUCCESS);
}

int checking_driver_read(uint64_t address, char *bytes, size_t nbytes) {
  return access_memory(address, bytes, nbytes, false);
}

int checking_driver_write(uint64_t address, char *bytes, size_t nbytes) {
  return access_memory(address, bytes, nbytes, true);
}
