/* Pinned and registered host memory. Needs the driver lock. */
#ifndef GPUSIM_HOST_MEMORY_H
#define GPUSIM_HOST_MEMORY_H

#include "allocation.h"

/* Releases host memory when its context is destroyed. */
void host_memory_drop(struct allocation *allocation);

#endif
