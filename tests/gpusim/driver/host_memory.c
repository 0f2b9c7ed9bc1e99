#include "host_memory.h"

#include <sys/mman.h>

#include "accounting.h"
#include "context.h"
#include "driver.h"
#include "host_object.h"
#include "log.h"

#define PAGE_BYTES 4096ull

static CUresult allocate_pinned(struct context *context, uint64_t bytes, void **address)
{
    if (!bytes || !address)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t block_bytes = round_up(bytes, PAGE_BYTES);
    void *block = mmap(NULL, block_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation allocation = {
        .kind = ALLOCATION_PINNED_HOST, .address = (uint64_t)block, .bytes = bytes, .block_bytes = block_bytes,
        .device = context->device, .context = context,
        .object = host_object_pin(context->device, (uint64_t)block, block_bytes)};
    allocation_insert(&allocation);
    accounting_host_allocated(LEDGER_HOST_PINNED, bytes);
    *address = block;
    return CUDA_SUCCESS;
}

static CUresult register_range(struct context *context, void *start, uint64_t bytes)
{
    if (!bytes || !start)
        return CUDA_ERROR_INVALID_VALUE;
    if (allocation_overlaps((uint64_t)start, bytes))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct allocation allocation = {
        .kind = ALLOCATION_REGISTERED_HOST, .address = (uint64_t)start, .bytes = bytes,
        .device = context->device, .context = context,
        .object = host_object_pin(context->device, (uint64_t)start, bytes)};
    allocation_insert(&allocation);
    accounting_host_allocated(LEDGER_HOST_REGISTERED, bytes);
    return CUDA_SUCCESS;
}

static void release(struct allocation *allocation)
{
    uint64_t pinned_bytes = allocation->block_bytes ? allocation->block_bytes : allocation->bytes;
    host_object_unpin(allocation->device, allocation->object, allocation->address, pinned_bytes);
    if (allocation->kind == ALLOCATION_PINNED_HOST)
        munmap((void *)allocation->address, allocation->block_bytes);
    allocation_remove(allocation);
}

static enum ledger_host_kind ledger_kind(const struct allocation *allocation)
{
    return allocation->kind == ALLOCATION_PINNED_HOST ? LEDGER_HOST_PINNED : LEDGER_HOST_REGISTERED;
}

void host_memory_drop(struct allocation *allocation)
{
    accounting_host_dropped(ledger_kind(allocation), allocation->bytes);
    release(allocation);
}

static CUresult free_host(void *address, enum allocation_kind kind, CUresult otherwise)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct allocation *allocation = allocation_at((uint64_t)address);
    if (!allocation || allocation->kind != kind) {
        result = otherwise;
    } else {
        accounting_host_freed(ledger_kind(allocation), allocation->bytes);
        release(allocation);
    }
    driver_leave();
    return result;
}

DRIVER_API(cuMemHostAlloc)(void **address, size_t bytes, unsigned flags)
{
    struct context *context;
    CUresult result = driver_enter_context(&context);
    if (result == CUDA_SUCCESS) {
        result = allocate_pinned(context, bytes, address);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuMemHostAlloc(%zu, %u) = %d", bytes, flags, result);
    return accounting_outcome(result);
}

DRIVER_API(cuMemAllocHost_v2)(void **address, size_t bytes)
{
    return sim_cuMemHostAlloc(address, bytes, 0);
}

DRIVER_API(cuMemFreeHost)(void *address)
{
    CUresult result = free_host(address, ALLOCATION_PINNED_HOST, CUDA_ERROR_INVALID_VALUE);
    log_line(LOG_CALLS, "cuMemFreeHost(%p) = %d", address, result);
    return result;
}

DRIVER_API(cuMemHostRegister_v2)(void *start, size_t bytes, unsigned flags)
{
    struct context *context;
    CUresult result = driver_enter_context(&context);
    if (result == CUDA_SUCCESS) {
        result = register_range(context, start, bytes);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuMemHostRegister(%p, %zu, %u) = %d", start, bytes, flags, result);
    return accounting_outcome(result);
}

DRIVER_API(cuMemHostUnregister)(void *start)
{
    CUresult result = free_host(start, ALLOCATION_REGISTERED_HOST, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    log_line(LOG_CALLS, "cuMemHostUnregister(%p) = %d", start, result);
    return result;
}

DRIVER_API(cuMemHostGetDevicePointer_v2)(CUdeviceptr *address, void *host, unsigned flags)
{
    (void)flags;
    *address = (CUdeviceptr)host;
    return CUDA_SUCCESS;
}

DRIVER_API(cuMemHostGetFlags)(unsigned *flags, void *address)
{
    (void)address;
    *flags = 0;
    return CUDA_SUCCESS;
}
