#include "memory.h"

#include "accounting.h"
#include "address_space.h"
#include "driver.h"
#include "graph_memory.h"
#include "host_memory.h"
#include "host_object.h"
#include "log.h"
#include "pool.h"
#include "small_blocks.h"

#define PITCH_BYTES 512ull

CUresult memory_back(struct allocation *allocation)
{
    if (allocation->bytes <= SMALL_BLOCK_LIMIT_BYTES) {
        allocation->address = small_block_take(allocation->device, allocation->bytes);
        return allocation->address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!video_memory_take(&allocation->video, allocation->device, allocation->bytes, VIDEO_LINEAR))
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation->block_bytes = allocation->video.bytes;
    allocation->address = address_space_take(allocation->block_bytes, GRANULE_BYTES);
    if (!allocation->address) {
        video_memory_give(&allocation->video, allocation->device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    video_memory_map(&allocation->video, allocation->address);
    return CUDA_SUCCESS;
}

void memory_unback(struct allocation *allocation)
{
    if (!allocation->block_bytes) {
        small_block_give(allocation->address, allocation->bytes);
        return;
    }
    video_memory_unmap(&allocation->video, allocation->address);
    video_memory_give(&allocation->video, allocation->device);
    address_space_give(allocation->address, allocation->block_bytes);
}

uint32_t memory_object(const struct allocation *allocation)
{
    return allocation->block_bytes ? allocation->video.object : small_block_object(allocation->address);
}

static CUresult allocate_linear(struct context *context, uint64_t bytes, CUdeviceptr *address)
{
    if (!bytes || !address)
        return CUDA_ERROR_INVALID_VALUE;
    struct allocation allocation = {
        .kind = ALLOCATION_LINEAR, .bytes = bytes, .device = context->device, .context = context};
    CUresult result = memory_back(&allocation);
    if (result != CUDA_SUCCESS)
        return result;
    allocation_insert(&allocation);
    accounting_allocated(allocation.device, LEDGER_DEVICE, bytes);
    *address = allocation.address;
    return CUDA_SUCCESS;
}

static CUresult allocate_managed(struct context *context, uint64_t bytes, CUdeviceptr *address)
{
    if (!bytes || !address)
        return CUDA_ERROR_INVALID_VALUE;
    struct allocation allocation = {
        .kind = ALLOCATION_MANAGED, .bytes = bytes, .device = context->device, .context = context,
        .block_bytes = round_up(bytes, GRANULE_BYTES)};
    allocation.address = address_space_take(allocation.block_bytes, GRANULE_BYTES);
    if (!allocation.address)
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation_insert(&allocation);
    accounting_allocated(allocation.device, LEDGER_MANAGED, bytes);
    *address = allocation.address;
    return CUDA_SUCCESS;
}

static void release_linear(struct allocation *allocation)
{
    memory_unback(allocation);
    allocation_remove(allocation);
}

static void release_address_only(struct allocation *allocation)
{
    address_space_give(allocation->address, allocation->block_bytes);
    allocation_remove(allocation);
}

void memory_drop_alias(struct allocation *alias)
{
    uint32_t object = alias->object;
    host_object_unpin(alias->context->device, object, alias->address, alias->block_bytes);
    if (object)
        accounting_drop_import(object);
    release_address_only(alias);
}

CUresult memory_free(CUdeviceptr address)
{
    if (!address)
        return CUDA_SUCCESS;
    struct allocation *allocation = allocation_at(address);
    if (!allocation)
        return CUDA_ERROR_INVALID_VALUE;
    switch (allocation->kind) {
    case ALLOCATION_LINEAR:
        accounting_freed(allocation->device, LEDGER_DEVICE, allocation->bytes);
        release_linear(allocation);
        return CUDA_SUCCESS;
    case ALLOCATION_MANAGED:
        accounting_freed(allocation->device, LEDGER_MANAGED, allocation->bytes);
        release_address_only(allocation);
        return CUDA_SUCCESS;
    case ALLOCATION_POOL:
        pool_free(allocation);
        return CUDA_SUCCESS;
    case ALLOCATION_GRAPH:
        graph_memory_free(allocation);
        return CUDA_SUCCESS;
    case ALLOCATION_EXTERNAL_ALIAS:
    case ALLOCATION_POOL_ALIAS:
        release_address_only(allocation);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static void drop(struct allocation *allocation)
{
    switch (allocation->kind) {
    case ALLOCATION_LINEAR:
        accounting_remove(allocation->device, LEDGER_DEVICE, allocation->bytes);
        release_linear(allocation);
        break;
    case ALLOCATION_MANAGED:
        accounting_remove(allocation->device, LEDGER_MANAGED, allocation->bytes);
        release_address_only(allocation);
        break;
    case ALLOCATION_PINNED_HOST:
    case ALLOCATION_REGISTERED_HOST:
        host_memory_drop(allocation);
        break;
    case ALLOCATION_IPC_ALIAS:
        memory_drop_alias(allocation);
        break;
    default:
        release_address_only(allocation);
    }
}

void memory_free_context(struct context *context)
{
    for (size_t index = allocation_count(); index-- > 0;) {
        struct allocation *allocation = allocation_by_index(index);
        if (allocation->context == context)
            drop(allocation);
    }
}

DRIVER_API(cuMemAlloc_v2)(CUdeviceptr *address, size_t bytes)
{
    struct context *context;
    CUresult result = driver_enter_context(&context);
    if (result == CUDA_SUCCESS) {
        result = allocate_linear(context, bytes, address);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuMemAlloc(%zu) = %d", bytes, result);
    return accounting_outcome(result);
}

DRIVER_API(cuMemAllocPitch_v2)(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    (void)element;
    struct context *context;
    CUresult result = driver_enter_context(&context);
    if (result == CUDA_SUCCESS) {
        uint64_t row_bytes = round_up(width, PITCH_BYTES);
        uint64_t bytes;
        bool too_large = __builtin_mul_overflow(row_bytes, height, &bytes);
        result = too_large ? CUDA_ERROR_OUT_OF_MEMORY : allocate_linear(context, bytes, address);
        if (result == CUDA_SUCCESS)
            *pitch = row_bytes;
        driver_leave();
    }
    log_line(LOG_CALLS, "cuMemAllocPitch(%zu, %zu) = %d", width, height, result);
    return accounting_outcome(result);
}

DRIVER_API(cuMemAllocManaged)(CUdeviceptr *address, size_t bytes, unsigned flags)
{
    struct context *context;
    CUresult result = driver_enter_context(&context);
    if (result == CUDA_SUCCESS) {
        result = allocate_managed(context, bytes, address);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuMemAllocManaged(%zu, %u) = %d", bytes, flags, result);
    return accounting_outcome(result);
}

DRIVER_API(cuMemFree_v2)(CUdeviceptr address)
{
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        result = memory_free(address);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuMemFree(%#lx) = %d", address, result);
    return result;
}

DRIVER_API(cuMemGetInfo_v2)(size_t *free_bytes, size_t *total_bytes)
{
    struct context *context;
    CUresult result = driver_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    *total_bytes = ledger_usable_bytes(accounting_ledger(), context->device);
    uint64_t used_bytes = accounting_device_used_bytes(context->device);
    *free_bytes = *total_bytes > used_bytes ? *total_bytes - used_bytes : 0;
    driver_leave();
    return CUDA_SUCCESS;
}

DRIVER_API(cuMemGetAddressRange_v2)(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct allocation *allocation = allocation_containing(address);
    if (!allocation) {
        result = CUDA_ERROR_NOT_FOUND;
    } else {
        if (base)
            *base = allocation->address;
        if (bytes)
            *bytes = allocation->bytes;
    }
    driver_leave();
    return result;
}
