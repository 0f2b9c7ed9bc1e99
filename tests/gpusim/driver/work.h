/* The device's work: how long launched kernels take, and who waits for them. */
#ifndef GPUSIM_WORK_H
#define GPUSIM_WORK_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A kernel of so many blocks begins when those before it have ended. Waits first where too many wait already, as a launch does on a real device.
 * All streams of a process share one device that does one thing at a time.
 */
void work_launch(uint64_t blocks);

/* When everything that was launched by now has ended: CLOCK_MONOTONIC, nanoseconds; 0 where kernels take no time. */
uint64_t work_end(void);

/* Whether that moment has come. */
bool work_is_done(uint64_t end);

/* Waits for that moment. */
void work_wait(uint64_t end);

#endif
