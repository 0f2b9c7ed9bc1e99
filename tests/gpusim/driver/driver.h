/* The life of the driver in this process, and the one lock around its state. */
#ifndef GPUSIM_DRIVER_H
#define GPUSIM_DRIVER_H

#include "cuda_abi.h"

/* Memory granularity of the device: everything it hands out is backed in these units. */
#define GRANULE_BYTES (2ull * 1024 * 1024)

/*
 * Takes the driver lock for a call. CUDA_SUCCESS with the lock held; else, without it, CUDA_ERROR_NOT_INITIALIZED before
 * cuInit and in a process forked after it, or CUDA_ERROR_DEINITIALIZED once the process is ending.
 */
CUresult driver_enter(void);

/* Whether calls are possible at all, without the lock: what driver_enter would return. */
CUresult driver_check(void);

/* driver_enter, and the calling thread's context: CUDA_ERROR_INVALID_CONTEXT without one, or if it is destroyed. */
CUresult driver_enter_context(struct context **current);

void driver_leave(void);

/* What cuInit does, but for the requests to the kernel driver: a program makes them itself. */
CUresult driver_start_bare(void);

/* The version that cuDriverGetVersion reports, e.g. 13020. */
int driver_version(void);

/* Zeroed memory for the driver's own records; ends the process when there is none. */
void *driver_record(size_t bytes);

/* `bytes` rounded up to a multiple of `unit`; UINT64_MAX where that overflows. */
uint64_t round_up(uint64_t bytes, uint64_t unit);

#endif
