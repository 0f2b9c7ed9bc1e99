#include "pool.h"

#include <stdlib.h>

#include "accounting.h"
#include "address_space.h"
#include "device.h"
#include "driver.h"

#define GROWTH_BYTES POOL_PIECE_BYTES
#define UNIT_BYTES 512ull

/* Locations with default pools: every device, and the host as one location. */
enum { HOST_PLACE = LEDGER_DEVICES, PLACES };
enum { TYPES = 2 };

static struct memory_pool *defaults[TYPES][PLACES];
static struct memory_pool *currents[TYPES][PLACES];
static struct memory_pool *pools;

struct memory_pool *pool_of_handle(CUmemoryPool handle)
{
    for (struct memory_pool *pool = pools; pool; pool = pool->next)
        if (pool == handle && !pool->destroyed)
            return pool;
    return NULL;
}

static struct memory_pool *new_pool(int device)
{
    struct memory_pool *pool = driver_record(sizeof *pool);
    pool->device = device;
    for (int flag = 0; flag < 4; flag++)
        pool->reuse_flags[flag] = 1;
    pool->next = pools;
    pools = pool;
    return pool;
}

static struct memory_pool *default_of_place(int type, int place)
{
    struct memory_pool **slot = &defaults[type - ALLOCATION_TYPE_PINNED][place];
    if (!*slot) {
        *slot = new_pool(place == HOST_PLACE ? 0 : place);
        (*slot)->is_default = true;
        (*slot)->on_host = place == HOST_PLACE;
        (*slot)->managed = type == ALLOCATION_TYPE_MANAGED;
    }
    return *slot;
}

static struct memory_pool *current_of_place(int type, int place)
{
    struct memory_pool *current = currents[type - ALLOCATION_TYPE_PINNED][place];
    return current ? current : default_of_place(type, place);
}

struct memory_pool *pool_default(int device)
{
    return default_of_place(ALLOCATION_TYPE_PINNED, device);
}

struct memory_pool *pool_current(int device)
{
    return current_of_place(ALLOCATION_TYPE_PINNED, device);
}

static int place_of(CUmemLocation location, int type)
{
    if (type != ALLOCATION_TYPE_PINNED && type != ALLOCATION_TYPE_MANAGED)
        return -1;
    int device;
    switch (location.type) {
    case LOCATION_DEVICE: return device_of_ordinal(location.id, &device) == CUDA_SUCCESS ? device : -1;
    case LOCATION_HOST:
    case LOCATION_HOST_NUMA:
    case LOCATION_HOST_NUMA_CURRENT: return HOST_PLACE;
    default: return -1;
    }
}

struct memory_pool *pool_for(CUmemLocation location, int type, bool current)
{
    int place = place_of(location, type);
    if (place < 0)
        return NULL;
    return current ? current_of_place(type, place) : default_of_place(type, place);
}

CUresult pool_set_current(CUmemLocation location, int type, struct memory_pool *pool)
{
    int place = place_of(location, type);
    if (place < 0 || !pool || (place != HOST_PLACE && pool->device != place))
        return CUDA_ERROR_INVALID_VALUE;
    currents[type - ALLOCATION_TYPE_PINNED][place] = pool;
    return CUDA_SUCCESS;
}

struct memory_pool *pool_create(const CUmemPoolProps *properties, int device)
{
    struct memory_pool *pool = new_pool(device);
    pool->on_host = properties->location.type != LOCATION_DEVICE;
    pool->managed = properties->allocation_type == ALLOCATION_TYPE_MANAGED;
    pool->max_bytes = properties->max_size_bytes;
    return pool;
}

static void forget(struct memory_pool *pool)
{
    pool_trim(pool, 0);
    struct memory_pool **link = &pools;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    pool_pieces_end(&pool->pieces);
    free(pool);
}

CUresult pool_destroy(struct memory_pool *pool)
{
    if (!pool || pool->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    for (int type = 0; type < TYPES; type++)
        for (int place = 0; place < PLACES; place++)
            if (currents[type][place] == pool)
                currents[type][place] = NULL;
    pool->destroyed = true;
    if (pool->live_allocations == 0)
        forget(pool);
    return CUDA_SUCCESS;
}

/* Host and managed pools take no device memory. */
static bool on_device(const struct memory_pool *pool)
{
    return !pool->on_host && !pool->managed;
}

/* Grows the pool for an allocation at a chosen address. */
static bool grow_to(struct memory_pool *pool, uint64_t backed_bytes, const struct allocation *allocation)
{
    if (backed_bytes <= pool->backed_bytes)
        return true;
    if (pool->max_bytes && backed_bytes > round_up(pool->max_bytes, GROWTH_BYTES))
        return false;
    uint64_t more_bytes = backed_bytes - pool->backed_bytes;
    if (on_device(pool)) {
        if (more_bytes > ledger_usable_bytes(accounting_ledger(), pool->device)
            || !pool_pieces_grow(&pool->pieces, pool->device, more_bytes, allocation->address, allocation->bytes))
            return false;
        accounting_add(pool->device, LEDGER_POOL_BACKED, more_bytes);
    }
    pool->backed_bytes = backed_bytes;
    if (backed_bytes > pool->backed_high_bytes)
        pool->backed_high_bytes = backed_bytes;
    return true;
}

static enum ledger_kind ledger_kind(const struct memory_pool *pool)
{
    return pool->managed ? LEDGER_MANAGED : LEDGER_POOL_USED;
}

static void account(const struct allocation *allocation)
{
    if (allocation->pool->on_host)
        accounting_host_allocated(LEDGER_HOST_PHYSICAL, allocation->bytes);
    else
        accounting_allocated(allocation->device, ledger_kind(allocation->pool), allocation->bytes);
}

static void unaccount(const struct allocation *allocation)
{
    if (allocation->pool->on_host)
        accounting_host_freed(LEDGER_HOST_PHYSICAL, allocation->bytes);
    else
        accounting_freed(allocation->device, ledger_kind(allocation->pool), allocation->bytes);
}

/* Places an allocation among the pool's pieces or, for pools without device memory or without a large enough gap, in a separate block. */
static bool place(struct allocation *allocation)
{
    struct memory_pool *pool = allocation->pool;
    if (on_device(pool))
        allocation->address = pool_pieces_place(&pool->pieces, pool->device, allocation->bytes);
    if (allocation->address)
        return true;
    allocation->block_bytes = round_up(allocation->bytes, GRANULE_BYTES);
    allocation->address = address_space_take(allocation->block_bytes, GRANULE_BYTES);
    return allocation->address != 0;
}

static void give_place(const struct allocation *allocation)
{
    if (allocation->block_bytes)
        address_space_give(allocation->address, allocation->block_bytes);
    else
        address_space_discard(allocation->address, allocation->bytes);
}

CUresult pool_allocate(struct memory_pool *pool, uint64_t bytes, CUdeviceptr *address)
{
    if (!pool || !address || pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes == 0) {
        *address = 0;
        return CUDA_SUCCESS;
    }
    uint64_t unit_bytes = round_up(bytes, UNIT_BYTES);
    uint64_t occupied_bytes;
    if (__builtin_add_overflow(pool->occupied_bytes, unit_bytes, &occupied_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation allocation = {.kind = ALLOCATION_POOL, .bytes = bytes, .device = pool->device, .pool = pool};
    if (!place(&allocation))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!grow_to(pool, round_up(occupied_bytes, GROWTH_BYTES), &allocation)) {
        give_place(&allocation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->occupied_bytes = occupied_bytes;
    pool->used_bytes += bytes;
    if (pool->used_bytes > pool->used_high_bytes)
        pool->used_high_bytes = pool->used_bytes;
    pool->live_allocations++;
    allocation_insert(&allocation);
    account(&allocation);
    *address = allocation.address;
    return CUDA_SUCCESS;
}

void pool_free(struct allocation *allocation)
{
    struct memory_pool *pool = allocation->pool;
    unaccount(allocation);
    pool->used_bytes -= allocation->bytes;
    pool->occupied_bytes -= round_up(allocation->bytes, UNIT_BYTES);
    pool->live_allocations--;
    give_place(allocation);
    allocation_remove(allocation);
    if (pool->destroyed && pool->live_allocations == 0)
        forget(pool);
}

void pool_trim(struct memory_pool *pool, uint64_t keep_bytes)
{
    uint64_t needed_bytes = round_up(pool->occupied_bytes, GROWTH_BYTES);
    /* Saturates: a threshold of UINT64_MAX keeps all memory. */
    uint64_t kept_bytes = round_up(keep_bytes, GROWTH_BYTES);
    if (kept_bytes < needed_bytes)
        kept_bytes = needed_bytes;
    if (kept_bytes >= pool->backed_bytes)
        return;
    uint64_t less_bytes = pool->backed_bytes - kept_bytes;
    pool->backed_bytes = kept_bytes;
    if (on_device(pool)) {
        accounting_remove(pool->device, LEDGER_POOL_BACKED, less_bytes);
        pool_pieces_shrink(&pool->pieces, pool->device, less_bytes);
    }
}

void pools_synchronise(void)
{
    for (struct memory_pool *pool = pools; pool; pool = pool->next)
        pool_trim(pool, pool->release_threshold_bytes);
}
