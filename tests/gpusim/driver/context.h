/* Contexts: the owners of memory, and what is current on each thread. Needs the driver lock. */
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
    struct context_memory *memory; /* what it takes of its device, while it is alive */
    struct context *owner; /* a green context's memory belongs to the primary context; else NULL */
};

/* Prepares the primary contexts of the visible devices, all inactive. */
void contexts_start(void);

/* The context whose memory the calling thread allocates; never a green context itself. */
CUresult context_current(struct context **current);

/* Takes or drops a reference to a device's primary context; the first makes it alive, the last frees what it owns. */
CUresult context_retain_primary(int device, struct context **primary);
CUresult context_release_primary(int device);

/* The ordinal of a context's device, as its process numbers it. */
CUdevice context_ordinal(const struct context *context);

#endif
