/* The one place from which this library calls `ioctl`: its stub in the procedure linkage table is what a watcher looks for. */
#ifndef GPUSIM_RM_CALL_H
#define GPUSIM_RM_CALL_H

#include <stdbool.h>

/* Whether the ioctl answered 0. */
bool rm_call(int file, unsigned long request, void *argument);

#endif
