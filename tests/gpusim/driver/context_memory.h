/*
 * What a context takes: the objects that libcuda makes of the kernel driver for one, in their order, and what grows with its use
 * (GPUSIM_RM_EXTRAS=1). Needs the driver lock.
 */
#ifndef GPUSIM_CONTEXT_MEMORY_H
#define GPUSIM_CONTEXT_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

struct context_memory;

/* Reads GPUSIM_CONTEXT_MB. */
void context_memory_start(void);

/* Takes it from a device; NULL when that has not enough left. */
struct context_memory *context_memory_take(int device);
void context_memory_give(struct context_memory *memory);

/* Whether contexts take more later (GPUSIM_RM_EXTRAS=1). */
bool context_memory_has_extras(void);

/* What a context takes later, where it does. False when its device has not that much left. */
bool context_memory_add_code(struct context_memory *memory);
bool context_memory_add_streams(struct context_memory *memory);

/* Local memory for so many bytes a thread: what there is goes, and more comes under the same handle. */
bool context_memory_fit_local(struct context_memory *memory, uint64_t bytes_per_thread);

#endif
