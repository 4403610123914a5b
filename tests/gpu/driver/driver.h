/* What the sources of the checking driver share. README.md describes the driver. */
#ifndef CHECKING_DRIVER_H
#define CHECKING_DRIVER_H

#define _GNU_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_DEVICES 8

enum kind { DEVICE, POOL, MANAGED, PINNED, REGISTERED, OPENED, KINDS };

/* Memory that the driver knows. Areas never overlap, and no address is used twice. */
struct area {
  enum kind kind;
  int device;
  uint64_t begin, size, id;
  char *data; /* where this library reaches the contents */
  int file;   /* the memory file of the contents, or -1 */
  int opens;  /* how often it was opened by its handle */
  CUipcMemHandle handle;
  struct area *next;
};

/* A position in the work of a stream: `count` operations are done. */
struct point {
  struct stream *stream;
  uint64_t count;
};

/* devices.c */
extern pthread_mutex_t driver_lock;
void misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
CUresult enter(void);                 /* lock, in a process that called cuInit */
CUresult enter_context(int *device);  /* the same, with a current context */
CUresult leave(CUresult result);      /* unlock, and return the result */
int current_device(void);             /* -1 without a context */
long read_setting(const char *name, long otherwise);
CUcontext context_of(int device);

/* memory.c */
struct area *find_area(uint64_t address);
void release_memory_of(int device);
void close_files_of_parent(void);
bool is_pageable(struct area *area);

/* streams.c */
CUresult check_capture(void); /* invalidate a capture, unless the mode of this thread permits all */
CUresult check_no_capture(void); /* invalidate a capture, whatever the mode */
bool is_used_by_queue(struct area *area);
void drain_device(int device);
void release_streams_of(int device);

#define TRY(call) do { CUresult try_ = (call); if (try_) return try_; } while (0)
#endif
