/* Stream-ordered memory pools: they keep device memory until they are trimmed or a synchronisation releases it. Needs the driver lock. */
#ifndef GPUSIM_POOL_H
#define GPUSIM_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "allocation.h"
#include "context.h"
#include "pool_pieces.h"

struct memory_pool {
    int device; /* index in the ledger; for host memory, the owner's device */
    bool on_host, managed, is_default, imported;
    bool destroyed; /* freed after its last allocation */
    uint64_t max_bytes; /* 0: no limit */
    uint64_t release_threshold_bytes;
    uint64_t used_bytes, used_high_bytes;     /* as requested */
    uint64_t backed_bytes, backed_high_bytes; /* device memory held */
    struct pool_pieces pieces;                /* pieces of device memory */
    uint64_t occupied_bytes;                  /* used bytes, in units of 512 bytes */
    uint64_t live_allocations;
    int reuse_flags[4];
    struct memory_pool *next;
};

/* The pool of a handle, NULL if the handle is invalid. */
struct memory_pool *pool_of_handle(CUmemoryPool handle);

/* The default pool of a device (pinned, on the device). */
struct memory_pool *pool_default(int device);

/* The current pool of a device, used by cuMemAllocAsync. */
struct memory_pool *pool_current(int device);

/* The pool for a location and type, as in the getters of CUDA 13; NULL if there is none. */
struct memory_pool *pool_for(CUmemLocation location, int type, bool current);
CUresult pool_set_current(CUmemLocation location, int type, struct memory_pool *pool);

struct memory_pool *pool_create(const CUmemPoolProps *properties, int device);
CUresult pool_destroy(struct memory_pool *pool);

CUresult pool_allocate(struct memory_pool *pool, uint64_t bytes, CUdeviceptr *address);
void pool_free(struct allocation *allocation);

/* Releases memory that live allocations do not need, but keeps `keep_bytes` if the pool has them. */
void pool_trim(struct memory_pool *pool, uint64_t keep_bytes);

/* Called by every synchronisation: each pool above its release threshold releases memory. */
void pools_synchronise(void);

#endif
