/* Kernel-driver objects for host memory and for another process's memory: no device memory is charged. Needs the driver lock. */
#ifndef GPUSIM_HOST_OBJECT_H
#define GPUSIM_HOST_OBJECT_H

#include <stdint.h>

/* Takes host memory of the driver; 0 without an object. */
uint32_t host_object_take(int device, uint64_t bytes);

/* Pins pages of the process. */
uint32_t host_object_pin(int device, uint64_t address, uint64_t bytes);

void host_object_unpin(int device, uint32_t object, uint64_t address, uint64_t bytes);

/* Frees host memory of the driver, or a duplicate; 0 is ignored. */
void host_object_give(int device, uint32_t object);

#endif
