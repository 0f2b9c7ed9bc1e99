/* Legacy inter-process handles: an alias of another allocation, 0 bytes, which must be closed as often as it was opened. */
#include <stdbool.h>
#include <string.h>

#include "accounting.h"
#include "address_space.h"
#include "allocation.h"
#include "context.h"
#include "driver.h"
#include "log.h"
#include "memory.h"
#include "rm.h"
#include "shared_handle.h"

DRIVER_API(cuIpcGetMemHandle)(CUipcMemHandle *handle, CUdeviceptr address)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct allocation *allocation = allocation_containing(address);
    if (allocation && allocation->kind == ALLOCATION_LINEAR) {
        struct shared_description description =
            shared_describe(allocation->address, allocation->bytes, allocation->identity, allocation->device);
        description.client = rm_client();
        description.object = memory_object(allocation);
        memcpy(handle, &description, sizeof description);
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    driver_leave();
    return result;
}

static struct allocation *find_alias(const CUipcMemHandle *handle, const struct context *context)
{
    for (size_t index = 0; index < allocation_count(); index++) {
        struct allocation *allocation = allocation_by_index(index);
        bool same = allocation->kind == ALLOCATION_IPC_ALIAS && allocation->context == context
            && memcmp(allocation->origin, handle, sizeof *handle) == 0;
        if (same)
            return allocation;
    }
    return NULL;
}

static CUresult open_alias(CUdeviceptr *address, const CUipcMemHandle *handle, struct context *context)
{
    struct shared_description description;
    memcpy(&description, handle, sizeof description);
    if (!shared_description_is_valid(&description))
        return CUDA_ERROR_INVALID_VALUE;
    struct allocation *alias = find_alias(handle, context);
    if (!alias) {
        struct allocation fresh = {
            .kind = ALLOCATION_IPC_ALIAS, .bytes = description.bytes, .device = description.device,
            .context = context, .block_bytes = round_up(description.bytes, GRANULE_BYTES)};
        fresh.address = address_space_take(fresh.block_bytes, GRANULE_BYTES);
        if (!fresh.address)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(fresh.origin, handle, sizeof *handle);
        if (rm_is_on() && description.object)
            fresh.object = rm_duplicate(context->device, description.client, description.object);
        if (fresh.object) {
            accounting_import(context->device, &description, fresh.object);
            rm_map(fresh.object, fresh.address, fresh.block_bytes, 0);
        }
        alias = allocation_insert(&fresh);
    }
    alias->opened++;
    *address = alias->address;
    return CUDA_SUCCESS;
}

DRIVER_API(cuIpcOpenMemHandle_v2)(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    (void)flags;
    struct context *context;
    CUresult result = driver_enter_context(&context);
    if (result == CUDA_SUCCESS) {
        result = open_alias(address, &handle, context);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuIpcOpenMemHandle = %d", result);
    return result;
}

DRIVER_API(cuIpcCloseMemHandle)(CUdeviceptr address)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct allocation *alias = allocation_at(address);
    if (!alias || alias->kind != ALLOCATION_IPC_ALIAS) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (--alias->opened == 0) {
        memory_drop_alias(alias);
    }
    driver_leave();
    log_line(LOG_CALLS, "cuIpcCloseMemHandle(%#lx) = %d", address, result);
    return result;
}
