/* Device queries that need no context. */
#include "context.h"
#include "stand_in.h"

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    return WITH_DRIVER(cuDeviceGetCount(count));
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    return WITH_DRIVER(cuDeviceGetAttribute(value, attribute, device));
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    return WITH_DRIVER(cuDeviceGetPCIBusId(text, bytes, device));
}

EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    return WITH_DRIVER(cuDeviceCanAccessPeer(can, device, peer));
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    return IN_CONTEXT(cuCtxGetStreamPriorityRange(least, greatest));
}

EXPORT cudaError_t cudaDeviceSynchronize(void)
{
    return IN_CONTEXT(cuCtxSynchronize());
}

/* Profilers attach to the real driver; there is nothing to start. */
EXPORT cudaError_t cudaProfilerStart(void)
{
    return cudaSuccess;
}

EXPORT cudaError_t cudaProfilerStop(void)
{
    return cudaSuccess;
}
