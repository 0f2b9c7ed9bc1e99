/* Stream-ordered memory pools: they keep what they took from the device until reported, or synchronised, to let go. Driver lock. */
#ifndef GPUSIM_POOL_H
#define GPUSIM_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "allocation.h"
#include "context.h"
#include "pool_pieces.h"

struct memory_pool {
    int device; /* index in the ledger; of the owner where the memory is the host's */
    bool on_host, managed, is_default, imported;
    bool destroyed; /* waits for its last allocation */
    uint64_t max_bytes; /* 0: no limit */
    uint64_t release_threshold_bytes;
    uint64_t used_bytes, used_high_bytes;     /* as requested */
    uint64_t backed_bytes, backed_high_bytes; /* held of the device */
    struct pool_pieces pieces;                /* what it holds of a device */
    uint64_t occupied_bytes;                  /* used, in units of 512 bytes */
    uint64_t live_allocations;
    int reuse_flags[4];
    struct memory_pool *next;
};

/* The pool a handle stands for, NULL when it stands for none. */
struct memory_pool *pool_of_handle(CUmemoryPool handle);

/* The default pool of a device (pinned, on the device). */
struct memory_pool *pool_default(int device);

/* The pool that serves cuMemAllocAsync on a device. */
struct memory_pool *pool_current(int device);

/* The pool for a location and type of CUDA 13's getters; NULL when there is none. */
struct memory_pool *pool_for(CUmemLocation location, int type, bool current);
CUresult pool_set_current(CUmemLocation location, int type, struct memory_pool *pool);

struct memory_pool *pool_create(const CUmemPoolProps *properties, int device);
CUresult pool_destroy(struct memory_pool *pool);

CUresult pool_allocate(struct memory_pool *pool, uint64_t bytes, CUdeviceptr *address);
void pool_free(struct allocation *allocation);

/* Gives back what is not needed for live allocations, but keeps `keep_bytes` where the pool has them. */
void pool_trim(struct memory_pool *pool, uint64_t keep_bytes);

/* What every synchronisation does: each pool above its release threshold lets go. */
void pools_synchronise(void);

#endif
