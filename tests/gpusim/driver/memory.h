/* Linear, pitched and managed memory, and the one free that serves every kind of pointer. Needs the driver lock. */
#ifndef GPUSIM_MEMORY_H
#define GPUSIM_MEMORY_H

#include "allocation.h"
#include "context.h"

/*
 * Device memory for an allocation record to describe: sets its address and block_bytes from its device and bytes.
 * CUDA_ERROR_OUT_OF_MEMORY when the device is full.
 */
CUresult memory_back(struct allocation *allocation);
void memory_unback(struct allocation *allocation);

/* The kernel driver's object that linear memory lies in; 0 without one. */
uint32_t memory_object(const struct allocation *allocation);

/* Ends an alias of another process's memory. */
void memory_drop_alias(struct allocation *alias);

/* Frees what cuMemFree may free, by what the pointer is. CUDA_ERROR_INVALID_VALUE for a pointer that is none of that. */
CUresult memory_free(CUdeviceptr address);

/* Frees everything that goes with a context, arrays excepted. */
void memory_free_context(struct context *context);

#endif
