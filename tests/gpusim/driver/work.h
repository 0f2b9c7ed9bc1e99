/* The device's work: the duration of launched kernels, and waiting for them. */
#ifndef GPUSIM_WORK_H
#define GPUSIM_WORK_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Starts a kernel with this many blocks after the earlier ones. If the queue is full, waits first, as a launch does on a real device.
 * All streams of a process share one device that runs one kernel at a time.
 */
void work_launch(uint64_t blocks);

/* The end of all work launched so far: CLOCK_MONOTONIC, nanoseconds; 0 if kernels take no time. */
uint64_t work_end(void);

/* Whether the work with this end time is done. */
bool work_is_done(uint64_t end);

/* Waits until that time. */
void work_wait(uint64_t end);

#endif
