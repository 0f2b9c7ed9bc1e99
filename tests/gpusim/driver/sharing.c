/* Export of virtual memory and pools to another process. */
#include <string.h>

#include "accounting.h"
#include "address_space.h"
#include "driver.h"
#include "log.h"
#include "memory.h"
#include "physical.h"
#include "pool.h"
#include "rm.h"
#include "shared_handle.h"

static CUresult put_file(void *file_out, const struct shared_description *description)
{
    int file = shared_export(description);
    if (file < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *(int *)file_out = file;
    return CUDA_SUCCESS;
}

DRIVER_API(cuMemExportToShareableHandle)(
    void *file_out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    (void)flags;
    if (type != HANDLE_TYPE_POSIX_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct physical *physical = physical_of_handle(handle);
    if (physical) {
        struct shared_description description = shared_describe(0, physical->bytes, handle, physical->device);
        description.client = rm_client();
        description.object = physical_object(physical);
        result = put_file(file_out, &description);
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    driver_leave();
    return result;
}

DRIVER_API(cuMemImportFromShareableHandle)(CUmemGenericAllocationHandle *handle, void *os_handle, int type)
{
    if (type != HANDLE_TYPE_POSIX_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct shared_description description;
    struct physical *physical;
    if (!shared_import((int)(intptr_t)os_handle, &description)) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        physical = physical_import(&description);
        physical->properties.type = ALLOCATION_TYPE_PINNED;
        physical->properties.location.type = LOCATION_DEVICE;
        *handle = physical->handle;
    }
    driver_leave();
    log_line(LOG_CALLS, "cuMemImportFromShareableHandle = %d", result);
    return result;
}

DRIVER_API(cuMemPoolExportToShareableHandle)(
    void *file_out, CUmemoryPool handle, int type, unsigned long long flags)
{
    (void)flags;
    if (type != HANDLE_TYPE_POSIX_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct memory_pool *pool = pool_of_handle(handle);
    if (pool) {
        struct shared_description description = shared_describe((uint64_t)pool, 0, 0, pool->device);
        result = put_file(file_out, &description);
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    driver_leave();
    return result;
}

DRIVER_API(cuMemPoolImportFromShareableHandle)(
    CUmemoryPool *pool, void *os_handle, int type, unsigned long long flags)
{
    (void)flags;
    if (type != HANDLE_TYPE_POSIX_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct shared_description description;
    if (shared_import((int)(intptr_t)os_handle, &description)) {
        CUmemPoolProps properties = {
            .allocation_type = ALLOCATION_TYPE_PINNED, .location = {.type = LOCATION_DEVICE}};
        *pool = pool_create(&properties, description.device);
        (*pool)->imported = true;
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    driver_leave();
    return result;
}

DRIVER_API(cuMemPoolExportPointer)(CUmemPoolPtrExportData *data, CUdeviceptr address)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct allocation *allocation = allocation_at(address);
    if (allocation && allocation->kind == ALLOCATION_POOL) {
        struct shared_description description =
            shared_describe(address, allocation->bytes, allocation->identity, allocation->device);
        memcpy(data, &description, sizeof description);
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    driver_leave();
    return result;
}

static CUresult import_pointer(
    CUdeviceptr *address, struct memory_pool *pool, const struct shared_description *description)
{
    if (!pool || !pool->imported || !shared_description_is_valid(description))
        return CUDA_ERROR_INVALID_VALUE;
    struct allocation alias = {
        .kind = ALLOCATION_POOL_ALIAS, .bytes = description->bytes, .device = description->device, .pool = pool,
        .block_bytes = round_up(description->bytes, GRANULE_BYTES)};
    alias.address = address_space_take(alias.block_bytes, GRANULE_BYTES);
    if (!alias.address)
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation_insert(&alias);
    *address = alias.address;
    return CUDA_SUCCESS;
}

DRIVER_API(cuMemPoolImportPointer)(CUdeviceptr *address, CUmemoryPool handle, CUmemPoolPtrExportData *data)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct shared_description description;
    memcpy(&description, data, sizeof description);
    result = import_pointer(address, pool_of_handle(handle), &description);
    driver_leave();
    return result;
}
