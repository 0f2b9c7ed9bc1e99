/* Linear, pitched and managed memory, and the free function for every kind of pointer. Needs the driver lock. */
#ifndef GPUSIM_MEMORY_H
#define GPUSIM_MEMORY_H

#include "allocation.h"
#include "context.h"

/*
 * Takes device memory for an allocation record: sets its address and block_bytes from its device and bytes.
 * CUDA_ERROR_OUT_OF_MEMORY when the device is full.
 */
CUresult memory_back(struct allocation *allocation);
void memory_unback(struct allocation *allocation);

/* The kernel driver's object that contains linear memory; 0 without one. */
uint32_t memory_object(const struct allocation *allocation);

/* Removes an alias of another process's memory. */
void memory_drop_alias(struct allocation *alias);

/* Frees a pointer that cuMemFree accepts, by its kind. CUDA_ERROR_INVALID_VALUE for any other pointer. */
CUresult memory_free(CUdeviceptr address);

/* Frees everything that belongs to a context except arrays. */
void memory_free_context(struct context *context);

#endif
