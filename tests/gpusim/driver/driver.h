/* State of the driver in this process, and the lock that guards it. */
#ifndef GPUSIM_DRIVER_H
#define GPUSIM_DRIVER_H

#include "cuda_abi.h"

/* Granularity of device memory: all memory is backed in these units. */
#define GRANULE_BYTES (2ull * 1024 * 1024)

/*
 * Takes the driver lock for a call. Returns CUDA_SUCCESS with the lock held. Otherwise, without the lock, CUDA_ERROR_NOT_INITIALIZED
 * before cuInit and in a process forked after it, or CUDA_ERROR_DEINITIALIZED while the process exits.
 */
CUresult driver_enter(void);

/* Returns the error that driver_enter would return, without taking the lock. */
CUresult driver_check(void);

/* Like driver_enter, and finds the thread's context: CUDA_ERROR_INVALID_CONTEXT if there is none or it is destroyed. */
CUresult driver_enter_context(struct context **current);

void driver_leave(void);

/* Does the work of cuInit without requests to the kernel driver, which the program makes itself. */
CUresult driver_start_bare(void);

/* The result of cuDriverGetVersion, e.g. 13020. */
int driver_version(void);

/* Returns zeroed memory for the driver's records; ends the process if there is none. */
void *driver_record(size_t bytes);

/* `bytes` rounded up to a multiple of `unit`; UINT64_MAX on overflow. */
uint64_t round_up(uint64_t bytes, uint64_t unit);

#endif
