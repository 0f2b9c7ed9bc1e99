/* The device of a thread, and its primary context. */
#ifndef GPUSIM_CONTEXT_H
#define GPUSIM_CONTEXT_H

#include "driver_entry.h"
#include "error.h"

/*
 * Ensures that the calling thread has a current context: its present one, else the primary context of the selected device
 * (device 0 if none was selected). Otherwise returns the driver's error.
 */
cudaError_t enter_context(void);

/* Runs one driver call, `IN_CONTEXT(cuMemFree(address))`, in the thread's context and remembers its failure. */
#define IN_CONTEXT(call) remember(enter_context() ?: driver.call)

/* The same for a call that needs no context. */
#define WITH_DRIVER(call) remember(start_driver() ?: driver.call)

#endif
