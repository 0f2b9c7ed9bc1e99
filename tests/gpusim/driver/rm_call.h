/* The only place where this library calls `ioctl`: memwatch looks for its stub in the procedure linkage table. */
#ifndef GPUSIM_RM_CALL_H
#define GPUSIM_RM_CALL_H

#include <stdbool.h>

/* Returns whether the ioctl returned 0. */
bool rm_call(int file, unsigned long request, void *argument);

#endif
