/*
 * For a program that repeats the requests of a log itself, through this library's call of `ioctl`. Exported beside the driver's
 * functions, under names that no driver uses.
 */
#ifndef GPUSIM_REPLAY_H
#define GPUSIM_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "device_library.h"
#include "requests.h"

/* Replaces cuInit: takes a slot in the ledger and opens the kernel driver's files, without any request. Fails with GPUSIM_RM=off. */
typedef CUresult replay_open(void);

/* The layout of requests (GPUSIM_RM). */
typedef const struct rm_layout *replay_layout(void);

/*
 * Sends a request; `answer` (or NULL) overrides the kernel driver's answer. Returns whether the ioctl returned 0.
 * NVML lists the process on a GPU while video memory there is charged to it.
 */
typedef bool replay_send(
    enum device_file file, uint32_t number, void *argument, uint32_t bytes, const struct device_answer *answer);

replay_open gpusim_replay_open;
replay_layout gpusim_replay_layout;
replay_send gpusim_replay_send;

#endif
