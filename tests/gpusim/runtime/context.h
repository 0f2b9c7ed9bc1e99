/* Which device a thread works on, and its primary context. */
#ifndef GPUSIM_CONTEXT_H
#define GPUSIM_CONTEXT_H

#include "driver_entry.h"
#include "error.h"

/*
 * Makes sure that the calling thread has a current context: the one it has, else the primary context of the device it chose
 * (device 0 if it chose none). Returns the driver's error otherwise.
 */
cudaError_t enter_context(void);

/* Runs one driver call, `IN_CONTEXT(cuMemFree(address))`, in the thread's context and remembers its failure. */
#define IN_CONTEXT(call) remember(enter_context() ?: driver.call)

/* The same for a call that needs no context. */
#define WITH_DRIVER(call) remember(start_driver() ?: driver.call)

#endif
