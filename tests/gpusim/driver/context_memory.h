/*
 * Memory of a context: the objects that libcuda creates in the kernel driver, in their order, and the memory that it takes on use
 * (GPUSIM_RM_EXTRAS=1). Needs the driver lock.
 */
#ifndef GPUSIM_CONTEXT_MEMORY_H
#define GPUSIM_CONTEXT_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

struct context_memory;

/* Reads GPUSIM_CONTEXT_MB. */
void context_memory_start(void);

/* Takes the memory from a device; NULL if the device has too little left. */
struct context_memory *context_memory_take(int device);
void context_memory_give(struct context_memory *memory);

/* Whether contexts take more memory on use (GPUSIM_RM_EXTRAS=1). */
bool context_memory_has_extras(void);

/* Takes the memory for code or streams, if enabled. False if the device has too little left. */
bool context_memory_add_code(struct context_memory *memory);
bool context_memory_add_streams(struct context_memory *memory);

/* Local memory for this many bytes per thread: frees the present piece and takes a larger one under the same handle. */
bool context_memory_fit_local(struct context_memory *memory, uint64_t bytes_per_thread);

#endif
