#include "accounting.h"
#include "device.h"
#include "driver.h"
#include "graph.h"
#include "log.h"
#include "memory.h"
#include "pool.h"
#include "stream.h"

/* ---- allocation ---- */

static CUresult allocate(CUdeviceptr *address, size_t bytes, struct memory_pool *pool, CUstream stream)
{
    struct graph *graph = stream_capture(stream);
    if (graph)
        return graph_add_allocation(graph, pool->device, bytes, address);
    return pool_allocate(pool, bytes, address);
}

DRIVER_API(cuMemAllocAsync)(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    struct context *context;
    CUresult result = driver_enter_context(&context);
    if (result == CUDA_SUCCESS) {
        result = allocate(address, bytes, pool_current(stream_device(stream, context)), stream);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuMemAllocAsync(%zu) = %d", bytes, result);
    return accounting_outcome(result);
}

DRIVER_API(cuMemAllocFromPoolAsync)(CUdeviceptr *address, size_t bytes, CUmemoryPool handle, CUstream stream)
{
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        struct memory_pool *pool = pool_of_handle(handle);
        result = pool ? allocate(address, bytes, pool, stream) : CUDA_ERROR_INVALID_VALUE;
        driver_leave();
    }
    log_line(LOG_CALLS, "cuMemAllocFromPoolAsync(%zu) = %d", bytes, result);
    return accounting_outcome(result);
}

DRIVER_API(cuMemFreeAsync)(CUdeviceptr address, CUstream stream)
{
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        struct graph *graph = stream_capture(stream);
        result = graph ? graph_add_free(graph, address) : memory_free(address);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuMemFreeAsync(%#lx) = %d", address, result);
    return result;
}

/* ---- pools ---- */

DRIVER_API(cuMemPoolCreate)(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    int device = 0;
    bool known_type = properties->allocation_type == ALLOCATION_TYPE_PINNED
        || properties->allocation_type == ALLOCATION_TYPE_MANAGED;
    if (!known_type)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (properties->location.type == LOCATION_DEVICE)
        result = device_of_ordinal(properties->location.id, &device);
    if (result == CUDA_SUCCESS)
        *pool = pool_create(properties, device);
    driver_leave();
    return result;
}

DRIVER_API(cuMemPoolDestroy)(CUmemoryPool handle)
{
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        result = pool_destroy(pool_of_handle(handle));
        driver_leave();
    }
    return result;
}

static CUresult enter_pool(CUmemoryPool handle, struct memory_pool **pool)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    *pool = pool_of_handle(handle);
    if (*pool)
        return CUDA_SUCCESS;
    driver_leave();
    return CUDA_ERROR_INVALID_VALUE;
}

DRIVER_API(cuMemPoolTrimTo)(CUmemoryPool handle, size_t keep_bytes)
{
    struct memory_pool *pool;
    CUresult result = enter_pool(handle, &pool);
    if (result == CUDA_SUCCESS) {
        pool_trim(pool, keep_bytes);
        driver_leave();
    }
    return result;
}

static CUresult set_attribute(struct memory_pool *pool, CUmemPool_attribute attribute, void *value)
{
    switch (attribute) {
    case POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case POOL_REUSE_ALLOW_OPPORTUNISTIC:
    case POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES: pool->reuse_flags[attribute] = *(int *)value; break;
    case POOL_RELEASE_THRESHOLD: pool->release_threshold_bytes = *(uint64_t *)value; break;
    case POOL_RESERVED_HIGH: pool->backed_high_bytes = pool->backed_bytes; break;
    case POOL_USED_HIGH: pool->used_high_bytes = pool->used_bytes; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult get_attribute(const struct memory_pool *pool, CUmemPool_attribute attribute, void *value)
{
    switch (attribute) {
    case POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case POOL_REUSE_ALLOW_OPPORTUNISTIC:
    case POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *(int *)value = pool->reuse_flags[attribute]; break;
    case POOL_RELEASE_THRESHOLD: *(uint64_t *)value = pool->release_threshold_bytes; break;
    case POOL_RESERVED_CURRENT: *(uint64_t *)value = pool->backed_bytes; break;
    case POOL_RESERVED_HIGH: *(uint64_t *)value = pool->backed_high_bytes; break;
    case POOL_USED_CURRENT: *(uint64_t *)value = pool->used_bytes; break;
    case POOL_USED_HIGH: *(uint64_t *)value = pool->used_high_bytes; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

DRIVER_API(cuMemPoolSetAttribute)(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    struct memory_pool *pool;
    CUresult result = enter_pool(handle, &pool);
    if (result == CUDA_SUCCESS) {
        result = set_attribute(pool, attribute, value);
        driver_leave();
    }
    return result;
}

DRIVER_API(cuMemPoolGetAttribute)(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    struct memory_pool *pool;
    CUresult result = enter_pool(handle, &pool);
    if (result == CUDA_SUCCESS) {
        result = get_attribute(pool, attribute, value);
        driver_leave();
    }
    return result;
}

DRIVER_API(cuMemPoolSetAccess)(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count)
{
    (void)access, (void)count;
    struct memory_pool *pool;
    CUresult result = enter_pool(handle, &pool);
    if (result == CUDA_SUCCESS)
        driver_leave();
    return result;
}

DRIVER_API(cuMemPoolGetAccess)(int *flags, CUmemoryPool handle, CUmemLocation *location)
{
    (void)location;
    struct memory_pool *pool;
    CUresult result = enter_pool(handle, &pool);
    if (result == CUDA_SUCCESS) {
        *flags = ACCESS_READ_WRITE;
        driver_leave();
    }
    return result;
}

/* ---- default and current pools ---- */

static CUresult find_pool(CUmemoryPool *pool, CUmemLocation location, int type, bool current)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct memory_pool *found = pool_for(location, type, current);
    if (found)
        *pool = found;
    driver_leave();
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_current(CUmemLocation location, int type, CUmemoryPool handle)
{
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        result = pool_set_current(location, type, pool_of_handle(handle));
        driver_leave();
    }
    return result;
}

static CUmemLocation at_device(CUdevice ordinal)
{
    return (CUmemLocation){.type = LOCATION_DEVICE, .id = ordinal};
}

DRIVER_API(cuDeviceGetDefaultMemPool)(CUmemoryPool *pool, CUdevice ordinal)
{
    return find_pool(pool, at_device(ordinal), ALLOCATION_TYPE_PINNED, false);
}

DRIVER_API(cuDeviceGetMemPool)(CUmemoryPool *pool, CUdevice ordinal)
{
    return find_pool(pool, at_device(ordinal), ALLOCATION_TYPE_PINNED, true);
}

DRIVER_API(cuDeviceSetMemPool)(CUdevice ordinal, CUmemoryPool pool)
{
    return set_current(at_device(ordinal), ALLOCATION_TYPE_PINNED, pool);
}

DRIVER_API(cuMemGetDefaultMemPool)(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    return find_pool(pool, *location, type, false);
}

DRIVER_API(cuMemGetMemPool)(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    return find_pool(pool, *location, type, true);
}

DRIVER_API(cuMemSetMemPool)(CUmemLocation *location, int type, CUmemoryPool pool)
{
    return set_current(*location, type, pool);
}
