#include <string.h>

#include "allocation.h"
#include "context.h"
#include "device.h"
#include "driver.h"

static int is_host(const struct allocation *allocation)
{
    return allocation->kind == ALLOCATION_PINNED_HOST || allocation->kind == ALLOCATION_REGISTERED_HOST;
}

static CUresult answer(void *value, int attribute, CUdeviceptr address, const struct allocation *allocation)
{
    switch (attribute) {
    case POINTER_CONTEXT: *(struct context **)value = allocation->context; break;
    case POINTER_MEMORY_TYPE: *(unsigned *)value = is_host(allocation) ? MEMORY_TYPE_HOST : MEMORY_TYPE_DEVICE; break;
    case POINTER_DEVICE_POINTER: *(uint64_t *)value = address; break;
    case POINTER_HOST_POINTER: *(uint64_t *)value = is_host(allocation) ? address : 0; break;
    case POINTER_BUFFER_ID: *(uint64_t *)value = allocation->identity; break;
    case POINTER_IS_MANAGED: *(unsigned *)value = allocation->kind == ALLOCATION_MANAGED; break;
    case POINTER_DEVICE_ORDINAL: *(int *)value = device_ordinal(allocation->device); break;
    case POINTER_IS_IPC_CAPABLE: *(unsigned *)value = allocation->kind == ALLOCATION_LINEAR; break;
    case POINTER_RANGE_START: *(uint64_t *)value = allocation->address; break;
    case POINTER_RANGE_SIZE: *(size_t *)value = allocation->bytes; break;
    case POINTER_MAPPED: *(unsigned *)value = 1; break;
    case POINTER_ACCESS_FLAGS: *(unsigned *)value = ACCESS_READ_WRITE; break;
    case POINTER_POOL: *(struct memory_pool **)value = allocation->pool; break;
    default: *(unsigned *)value = 0;
    }
    return CUDA_SUCCESS;
}

/* The results of cuPointerGetAttributes for an unknown pointer. */
static void answer_unknown(void *value, int attribute)
{
    switch (attribute) {
    case POINTER_DEVICE_ORDINAL: *(int *)value = -2; break;
    case POINTER_MEMORY_TYPE:
    case POINTER_IS_MANAGED: *(unsigned *)value = 0; break;
    case POINTER_CONTEXT:
    case POINTER_DEVICE_POINTER:
    case POINTER_HOST_POINTER: *(void **)value = NULL; break;
    default: break;
    }
}

DRIVER_API(cuPointerGetAttribute)(void *value, int attribute, CUdeviceptr address)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct allocation *allocation = allocation_containing(address);
    result = allocation ? answer(value, attribute, address, allocation) : CUDA_ERROR_INVALID_VALUE;
    driver_leave();
    return result;
}

DRIVER_API(cuPointerGetAttributes)(unsigned count, int *attributes, void **values, CUdeviceptr address)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct allocation *allocation = allocation_containing(address);
    for (unsigned index = 0; index < count; index++) {
        if (allocation)
            answer(values[index], attributes[index], address, allocation);
        else
            answer_unknown(values[index], attributes[index]);
    }
    driver_leave();
    return CUDA_SUCCESS;
}

DRIVER_API(cuPointerSetAttribute)(const void *value, int attribute, CUdeviceptr address)
{
    (void)value, (void)attribute, (void)address;
    return driver_check();
}
