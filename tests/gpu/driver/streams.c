/* Streams, events and copies. One thread executes the work of all streams, each copy late. */
#include "driver.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum work { COPY, FILL, WAIT, CALL };

struct operation {
  enum work work;
  uint64_t target, source, nbytes; /* of copies; the source is 0 if it was staged */
  char *to, *from;
  char *staged;
  unsigned char value;
  struct point point;
  void (*function)(void *);
  CUstreamCallback callback;
  void *argument;
  CUstream handle;
  struct operation *next;
};

struct stream {
  int device;
  bool is_alive, ignores_legacy;
  uint64_t submitted, done;
  double ready_at; /* when the next copy may be executed */
  bool is_timed;
  struct operation *first, *last;
  struct stream *next;
};

struct event {
  int device;
  struct point point;
  struct event *next;
};

static struct stream *streams, *legacy[MAX_DEVICES];
static __thread struct stream *own[MAX_DEVICES];
static struct event *events;
static pthread_cond_t has_work = PTHREAD_COND_INITIALIZER, has_done = PTHREAD_COND_INITIALIZER;
static bool has_engine;
static long stream_count, event_count, copy_count;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

static bool is_reached(struct point point) { return !point.stream || point.stream->done >= point.count; }

/* Return whether the first operation of a stream can be executed now; otherwise say when. */
static bool is_due(struct stream *stream, double time, double *wake) {
  struct operation *first = stream->first;
  if (first->work == WAIT) return is_reached(first->point);
  if (first->work == CALL) return true;
  if (!stream->is_timed) {
    stream->is_timed = true;
    stream->ready_at = time + read_setting("CHECKING_DRIVER_DELAY", 2000) * 1e-6;
  }
  if (stream->ready_at <= time) return true;
  if (!*wake || stream->ready_at < *wake) *wake = stream->ready_at;
  return false;
}

static void execute(struct stream *stream) {
  struct operation *first = stream->first;
  switch (first->work) {
    case COPY: memmove(first->to, first->staged ? first->staged : first->from, first->nbytes); break;
    case FILL: memset(first->to, first->value, first->nbytes); break;
    case WAIT: break;
    case CALL:
      pthread_mutex_unlock(&driver_lock);
      if (first->callback) first->callback(first->handle, CUDA_SUCCESS, first->argument);
      else first->function(first->argument);
      pthread_mutex_lock(&driver_lock);
      break;
  }
  stream->first = first->next;
  if (!stream->first) stream->last = NULL;
  stream->is_timed = false;
  stream->done++;
  free(first->staged);
  free(first);
  pthread_cond_broadcast(&has_done);
}

static void *run_engine(void *unused) {
  pthread_mutex_lock(&driver_lock);
  for (;;) {
    double time = now(), wake = 0;
    bool has_executed = false;
    for (struct stream *stream = streams; stream; stream = stream->next)
      if (stream->first && is_due(stream, time, &wake)) {
        execute(stream);
        has_executed = true;
      }
    if (has_executed) continue;
    if (wake) {
      struct timespec until = {(time_t)wake, (long)((wake - (time_t)wake) * 1e9)};
      pthread_cond_timedwait(&has_work, &driver_lock, &until);
    } else {
      pthread_cond_wait(&has_work, &driver_lock);
    }
  }
  return unused;
}

static void submit(struct stream *stream, struct operation operation) {
  struct operation *added = malloc(sizeof *added);
  *added = operation;
  added->next = NULL;
  if (stream->last) stream->last->next = added;
  else stream->first = added;
  stream->last = added;
  stream->submitted++;
  if (!has_engine) {
    pthread_t thread;
    has_engine = true;
    pthread_create(&thread, NULL, run_engine, NULL);
    pthread_detach(thread);
  }
  pthread_cond_signal(&has_work);
}

static void wait_until(struct point point) {
  while (!is_reached(point)) pthread_cond_wait(&has_done, &driver_lock);
}

static struct point end_of(struct stream *stream) {
  return (struct point){stream, stream->submitted};
}

static struct stream *add_stream(int device, bool ignores_legacy) {
  struct stream *stream = calloc(1, sizeof *stream);
  *stream = (struct stream){.device = device, .is_alive = true, .ignores_legacy = ignores_legacy,
                            .next = streams};
  return streams = stream;
}

/* Return the stream of a handle; NULL if it is not one. */
static struct stream *resolve(CUstream handle, int device) {
  struct stream **standard = NULL;
  if (handle == NULL || handle == CU_STREAM_LEGACY) standard = &legacy[device];
  if (handle == CU_STREAM_PER_THREAD) standard = &own[device];
  if (standard) {
    if (!*standard) *standard = add_stream(device, false);
    return *standard;
  }
  for (struct stream *stream = streams; stream; stream = stream->next)
    if ((CUstream)stream == handle) {
      if (!stream->is_alive) misuse("the stream %p was destroyed before", (void *)handle);
      return stream;
    }
  return NULL;
}

/* The legacy default stream waits for all others of its device, and they wait for it. */
static void order_with_legacy(struct stream *stream) {
  struct stream *standard = legacy[stream->device];
  if (stream == standard) {
    for (struct stream *other = streams; other; other = other->next)
      if (other != stream && other->device == stream->device && !other->ignores_legacy && other->first)
        submit(stream, (struct operation){.work = WAIT, .point = end_of(other)});
  } else if (standard && standard->first && !stream->ignores_legacy) {
    submit(stream, (struct operation){.work = WAIT, .point = end_of(standard)});
  }
}

static bool overlaps(uint64_t begin, uint64_t nbytes, struct area *area) {
  return begin < area->begin + area->size && area->begin < begin + nbytes;
}

bool is_used_by_queue(struct area *area) {
  for (struct stream *stream = streams; stream; stream = stream->next)
    for (struct operation *each = stream->first; each; each = each->next) {
      if (each->work != COPY && each->work != FILL) continue;
      if (overlaps(each->target, each->nbytes, area)) return true;
      if (each->source && overlaps(each->source, each->nbytes, area)) return true;
    }
  return false;
}

void drain_device(int device) {
  for (struct stream *stream = streams; stream; stream = stream->next)
    if (stream->device == device) wait_until(end_of(stream));
}

void release_streams_of(int device) {
  for (struct stream *stream = streams; stream; stream = stream->next)
    if (stream->device == device && stream->is_alive && stream != legacy[device]) {
      stream->is_alive = false;
    }
}

/* Return where this library reaches memory; abort if a copy leaves the allocation. */
static char *reach(uint64_t address, size_t nbytes, struct area **area) {
  *area = find_area(address);
  if (!*area) return (char *)address;
  if (address + nbytes > (*area)->begin + (*area)->size)
    misuse("a copy of %zu bytes at %#lx leaves an allocation of %lu bytes", nbytes, address,
           (*area)->size);
  return (*area)->data + (address - (*area)->begin);
}

/* Copy as CUDA documents it: pageable memory is read in the call, and written before its end. */
static CUresult copy(uint64_t target, uint64_t source, size_t nbytes, CUstream handle, bool waits) {
  int device;
  TRY(enter_context(&device));
  struct stream *stream = resolve(handle, device);
  if (!stream) return leave(CUDA_ERROR_INVALID_HANDLE);
  if (!nbytes) return leave(CUDA_SUCCESS);
  struct area *to, *from;
  struct operation operation = {.work = COPY, .target = target, .source = source, .nbytes = nbytes};
  operation.to = reach(target, nbytes, &to);
  operation.from = reach(source, nbytes, &from);
  copy_count++;
  order_with_legacy(stream);
  if (is_pageable(from)) {
    operation.staged = malloc(nbytes);
    memcpy(operation.staged, operation.from, nbytes);
    operation.source = 0;
  }
  submit(stream, operation);
  if (waits || is_pageable(to)) wait_until(end_of(stream));
  return leave(CUDA_SUCCESS);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t nbytes, CUstream stream) {
  return copy(to, from, nbytes, stream, false);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t nbytes, CUstream stream) {
  return copy(to, (uint64_t)from, nbytes, stream, false);
}
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t nbytes, CUstream stream) {
  return copy((uint64_t)to, from, nbytes, stream, false);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t nbytes, CUstream stream) {
  return copy(to, from, nbytes, stream, false);
}
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t nbytes) {
  return copy(to, from, nbytes, NULL, true);
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t nbytes) {
  return copy(to, (uint64_t)from, nbytes, NULL, true);
}
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t nbytes) {
  return copy((uint64_t)to, from, nbytes, NULL, true);
}
/* A copy within a device does not make the caller wait. */
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t nbytes) {
  return copy(to, from, nbytes, NULL, false);
}

CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t nbytes, CUstream handle) {
  int device;
  TRY(enter_context(&device));
  struct stream *stream = resolve(handle, device);
  struct area *area;
  if (!stream) return leave(CUDA_ERROR_INVALID_HANDLE);
  char *to = reach(target, nbytes, &area);
  if (!area) return leave(CUDA_ERROR_INVALID_VALUE);
  order_with_legacy(stream);
  submit(stream, (struct operation){.work = FILL, .target = target, .nbytes = nbytes, .to = to,
                                    .value = value});
  return leave(CUDA_SUCCESS);
}

/* One capture at a time, whose graph stays empty. */
static struct {
  struct stream *stream;
  bool is_invalid;
} capture;
static __thread CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult check_capture(void) {
  if (!capture.stream || capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  capture.is_invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult check_no_capture(void) {
  if (!capture.stream) return CUDA_SUCCESS;
  capture.is_invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  CUstreamCaptureMode before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  int device;
  TRY(enter_context(&device));
  *stream = (CUstream)add_stream(device, flags & CU_STREAM_NON_BLOCKING);
  stream_count++;
  return leave(CUDA_SUCCESS);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
  return cuStreamCreate(stream, flags);
}

/* The work of a destroyed stream goes on. */
CUresult cuStreamDestroy(CUstream handle) {
  int device;
  TRY(enter_context(&device));
  struct stream *stream = handle > CU_STREAM_PER_THREAD ? resolve(handle, device) : NULL;
  if (!stream) return leave(CUDA_ERROR_INVALID_HANDLE);
  stream->is_alive = false;
  stream_count--;
  return leave(CUDA_SUCCESS);
}

CUresult cuStreamSynchronize(CUstream handle) {
  int device;
  TRY(enter_context(&device));
  if (check_capture()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  struct stream *stream = resolve(handle, device);
  if (!stream) return leave(CUDA_ERROR_INVALID_HANDLE);
  order_with_legacy(stream);
  wait_until(end_of(stream));
  return leave(CUDA_SUCCESS);
}

CUresult cuStreamQuery(CUstream handle) {
  int device;
  TRY(enter_context(&device));
  struct stream *stream = resolve(handle, device);
  if (!stream) return leave(CUDA_ERROR_INVALID_HANDLE);
  return leave(stream->first ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  int device;
  TRY(enter_context(&device));
  struct stream *stream = resolve(handle, device);
  if (!stream) return leave(CUDA_ERROR_INVALID_HANDLE);
  if (capture.stream || mode != CU_STREAM_CAPTURE_MODE_GLOBAL)
    return leave(CUDA_ERROR_NOT_SUPPORTED);
  capture.stream = stream;
  capture.is_invalid = false;
  return leave(CUDA_SUCCESS);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
  int device;
  TRY(enter_context(&device));
  if (!capture.stream || resolve(handle, device) != capture.stream)
    return leave(CUDA_ERROR_ILLEGAL_STATE);
  capture.stream = NULL;
  *graph = NULL;
  return leave(capture.is_invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
  int device;
  TRY(enter_context(&device));
  struct stream *stream = resolve(handle, device);
  if (!stream) return leave(CUDA_ERROR_INVALID_HANDLE);
  *status = stream == capture.stream ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                     : CU_STREAM_CAPTURE_STATUS_NONE;
  return leave(CUDA_SUCCESS);
}

static CUresult call(CUstream handle, struct operation operation) {
  int device;
  TRY(enter_context(&device));
  struct stream *stream = resolve(handle, device);
  if (!stream) return leave(CUDA_ERROR_INVALID_HANDLE);
  order_with_legacy(stream);
  submit(stream, operation);
  return leave(CUDA_SUCCESS);
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned flags) {
  return call(stream, (struct operation){.work = CALL, .callback = callback, .argument = data,
                                         .handle = stream});
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
  return call(stream, (struct operation){.work = CALL, .function = function, .argument = data});
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
  int device;
  TRY(enter_context(&device));
  struct event *added = calloc(1, sizeof *added);
  *added = (struct event){.device = device, .next = events};
  events = added;
  *event = (CUevent)added;
  event_count++;
  return leave(CUDA_SUCCESS);
}

static struct event *find_event(CUevent handle) {
  for (struct event *event = events; event; event = event->next)
    if ((CUevent)event == handle) return event;
  return NULL;
}

CUresult cuEventDestroy(CUevent handle) {
  TRY(enter());
  struct event **link = &events;
  while (*link && (CUevent)*link != handle) link = &(*link)->next;
  if (!*link) misuse("cuEventDestroy(%p): there is no such event", (void *)handle);
  struct event *found = *link;
  *link = found->next;
  free(found);
  event_count--;
  return leave(CUDA_SUCCESS);
}

CUresult cuEventRecord(CUevent handle, CUstream target) {
  int device;
  TRY(enter_context(&device));
  struct event *event = find_event(handle);
  struct stream *stream = resolve(target, device);
  /* Both have to belong to one context. */
  if (!event || !stream || event->device != stream->device) return leave(CUDA_ERROR_INVALID_HANDLE);
  order_with_legacy(stream);
  event->point = end_of(stream);
  return leave(CUDA_SUCCESS);
}

CUresult cuEventQuery(CUevent handle) {
  TRY(enter());
  if (check_capture()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  struct event *event = find_event(handle);
  if (!event) misuse("the event %p was destroyed before", (void *)handle);
  return leave(is_reached(event->point) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult cuEventSynchronize(CUevent handle) {
  TRY(enter());
  if (check_capture()) return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  struct event *event = find_event(handle);
  if (!event) misuse("the event %p was destroyed before", (void *)handle);
  wait_until(event->point);
  return leave(CUDA_SUCCESS);
}

CUresult cuStreamWaitEvent(CUstream target, CUevent handle, unsigned flags) {
  int device;
  TRY(enter_context(&device));
  struct event *event = find_event(handle);
  struct stream *stream = resolve(target, device);
  if (!event || !stream) return leave(CUDA_ERROR_INVALID_HANDLE);
  submit(stream, (struct operation){.work = WAIT, .point = event->point});
  return leave(CUDA_SUCCESS);
}

/* For tests: what was created and not destroyed, and the copies so far. */
long checking_driver_streams(void) { return stream_count; }
long checking_driver_events(void) { return event_count; }
long checking_driver_copies(void) { return copy_count; }
