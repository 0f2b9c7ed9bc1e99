/* Memory that is allocated and freed synchronously: device, managed, pinned host, and shared between processes. */
#include "context.h"
#include "stand_in.h"

#include <string.h>

EXPORT cudaError_t cudaMalloc(void **address, size_t bytes)
{
    *address = NULL;
    if (bytes == 0)
        return remember(enter_context());
    return IN_CONTEXT(cuMemAlloc((device_address *)address, bytes));
}

EXPORT cudaError_t cudaMallocManaged(void **address, size_t bytes, unsigned flags)
{
    return IN_CONTEXT(cuMemAllocManaged((device_address *)address, bytes, flags));
}

EXPORT cudaError_t cudaFree(void *address)
{
    /* cudaFree(NULL) is a common way to create the context. */
    if (!address)
        return remember(enter_context());
    return IN_CONTEXT(cuMemFree((device_address)address));
}

EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    return IN_CONTEXT(cuMemGetInfo(free_bytes, total_bytes));
}

EXPORT cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned flags)
{
    *address = NULL;
    if (bytes == 0)
        return remember(enter_context());
    return IN_CONTEXT(cuMemHostAlloc(address, bytes, flags));
}

EXPORT cudaError_t cudaMallocHost(void **address, size_t bytes)
{
    return cudaHostAlloc(address, bytes, 0);
}

EXPORT cudaError_t cudaFreeHost(void *address)
{
    if (!address)
        return remember(enter_context());
    return IN_CONTEXT(cuMemFreeHost(address));
}

EXPORT cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned flags)
{
    return IN_CONTEXT(cuMemHostRegister(address, bytes, flags));
}

EXPORT cudaError_t cudaHostUnregister(void *address)
{
    return IN_CONTEXT(cuMemHostUnregister(address));
}

static int runtime_memory_type(unsigned driver_type, unsigned is_managed)
{
    if (is_managed)
        return MEMORY_MANAGED;
    switch (driver_type) {
    case DRIVER_MEMORY_HOST:
        return MEMORY_HOST;
    case DRIVER_MEMORY_DEVICE:
        return MEMORY_DEVICE;
    default:
        return MEMORY_UNREGISTERED;
    }
}

EXPORT cudaError_t cudaPointerGetAttributes(pointer_attributes *attributes, const void *address)
{
    unsigned type = 0, is_managed = 0;
    int device = NO_DEVICE;
    void *on_device = NULL, *on_host = NULL;
    int wanted[] = {POINTER_MEMORY_TYPE, POINTER_DEVICE_ORDINAL, POINTER_DEVICE_POINTER, POINTER_HOST_POINTER,
                    POINTER_IS_MANAGED};
    void *values[] = {&type, &device, &on_device, &on_host, &is_managed};
    const cudaError_t result = IN_CONTEXT(cuPointerGetAttributes(5, wanted, values, (device_address)address));
    if (result != cudaSuccess)
        return result;
    memset(attributes, 0, sizeof *attributes);
    attributes->type = runtime_memory_type(type, is_managed);
    attributes->device = device;
    attributes->device_pointer = on_device;
    attributes->host_pointer = attributes->type == MEMORY_UNREGISTERED ? (void *)(uintptr_t)address : on_host;
    return cudaSuccess;
}

EXPORT cudaError_t cudaIpcGetMemHandle(ipc_handle *handle, void *address)
{
    return IN_CONTEXT(cuIpcGetMemHandle(handle, (device_address)address));
}

EXPORT cudaError_t cudaIpcOpenMemHandle(void **address, ipc_handle handle, unsigned flags)
{
    return IN_CONTEXT(cuIpcOpenMemHandle((device_address *)address, handle, flags));
}

EXPORT cudaError_t cudaIpcCloseMemHandle(void *address)
{
    return IN_CONTEXT(cuIpcCloseMemHandle((device_address)address));
}
