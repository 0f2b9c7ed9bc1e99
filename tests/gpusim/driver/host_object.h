/* Host memory, and another process's memory, as the kernel driver has it: objects that charge nobody on a device. Driver lock. */
#ifndef GPUSIM_HOST_OBJECT_H
#define GPUSIM_HOST_OBJECT_H

#include <stdint.h>

/* Host memory of the driver's own; 0 without an object. */
uint32_t host_object_take(int device, uint64_t bytes);

/* Pages of the process. */
uint32_t host_object_pin(int device, uint64_t address, uint64_t bytes);

void host_object_unpin(int device, uint32_t object, uint64_t address, uint64_t bytes);

/* Gives memory of the driver's own back, or a duplicate; nothing happens for 0. */
void host_object_give(int device, uint32_t object);

#endif
