/* Contexts, which own memory, and the current context of each thread. Needs the driver lock. */
#ifndef GPUSIM_CONTEXT_H
#define GPUSIM_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

struct context {
    int device; /* index of the device in the ledger */
    bool primary;
    bool alive;
    unsigned references; /* primary contexts: retains not yet released */
    unsigned flags;
    uint64_t identity;
    struct context_memory *memory; /* its memory on the device, while it is alive */
    struct context *owner; /* the primary context that owns a green context's memory; else NULL */
};

/* Prepares the primary contexts of the visible devices, all inactive. */
void contexts_start(void);

/* The context in which the calling thread allocates; never a green context. */
CUresult context_current(struct context **current);

/* Adds or drops a reference to a device's primary context; the first creates it, and the last frees its memory. */
CUresult context_retain_primary(int device, struct context **primary);
CUresult context_release_primary(int device);

/* The ordinal of a context's device in this process. */
CUdevice context_ordinal(const struct context *context);

#endif
