/*
 * For a program that makes the requests of a log by itself, through this library's call of `ioctl`. Exported beside the driver's
 * functions, under names that no driver has.
 */
#ifndef GPUSIM_REPLAY_H
#define GPUSIM_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "device_library.h"
#include "requests.h"

/* In the place of cuInit: a slot in the ledger and the kernel driver's files, and no request. Fails where GPUSIM_RM=off. */
typedef CUresult replay_open(void);

/* The layout of requests (GPUSIM_RM). */
typedef const struct rm_layout *replay_layout(void);

/*
 * Sends a request; `answer` (or NULL) is what the kernel driver is to say. Whether the ioctl answered 0.
 * NVML lists the process on a GPU while it is charged for video memory there.
 */
typedef bool replay_send(
    enum device_file file, uint32_t number, void *argument, uint32_t bytes, const struct device_answer *answer);

replay_open gpusim_replay_open;
replay_layout gpusim_replay_layout;
replay_send gpusim_replay_send;

#endif
