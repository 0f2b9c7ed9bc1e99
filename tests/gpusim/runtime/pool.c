/* Stream-ordered memory from pools. */
#include "context.h"
#include "stand_in.h"

EXPORT cudaError_t cudaMallocAsync(void **address, size_t bytes, void *stream)
{
    *address = NULL;
    if (bytes == 0)
        return remember(enter_context());
    return IN_CONTEXT(cuMemAllocAsync((device_address *)address, bytes, stream));
}

EXPORT cudaError_t cudaFreeAsync(void *address, void *stream)
{
    if (!address)
        return remember(enter_context());
    return IN_CONTEXT(cuMemFreeAsync((device_address)address, stream));
}

EXPORT cudaError_t cudaDeviceGetDefaultMemPool(void **pool, int device)
{
    return WITH_DRIVER(cuDeviceGetDefaultMemPool(pool, device));
}

EXPORT cudaError_t cudaMemPoolGetAttribute(void *pool, int attribute, void *value)
{
    return WITH_DRIVER(cuMemPoolGetAttribute(pool, attribute, value));
}

EXPORT cudaError_t cudaMemPoolSetAttribute(void *pool, int attribute, void *value)
{
    return WITH_DRIVER(cuMemPoolSetAttribute(pool, attribute, value));
}

EXPORT cudaError_t cudaMemPoolSetAccess(void *pool, const void *descriptions, size_t count)
{
    return WITH_DRIVER(cuMemPoolSetAccess(pool, descriptions, count));
}

EXPORT cudaError_t cudaMemPoolTrimTo(void *pool, size_t keep_bytes)
{
    return WITH_DRIVER(cuMemPoolTrimTo(pool, keep_bytes));
}

EXPORT cudaError_t cudaDeviceGetGraphMemAttribute(int device, int attribute, void *value)
{
    return WITH_DRIVER(cuDeviceGetGraphMemAttribute(device, attribute, value));
}

EXPORT cudaError_t cudaDeviceSetGraphMemAttribute(int device, int attribute, void *value)
{
    return WITH_DRIVER(cuDeviceSetGraphMemAttribute(device, attribute, value));
}
