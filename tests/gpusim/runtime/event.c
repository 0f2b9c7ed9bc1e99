#include "context.h"
#include "stand_in.h"

EXPORT cudaError_t cudaEventCreateWithFlags(void **event, unsigned flags)
{
    return IN_CONTEXT(cuEventCreate(event, flags));
}

EXPORT cudaError_t cudaEventCreate(void **event)
{
    return cudaEventCreateWithFlags(event, 0);
}

EXPORT cudaError_t cudaEventRecord(void *event, void *stream)
{
    return IN_CONTEXT(cuEventRecord(event, stream));
}

EXPORT cudaError_t cudaEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
    return IN_CONTEXT(cuEventRecordWithFlags(event, stream, flags));
}

EXPORT cudaError_t cudaEventQuery(void *event)
{
    return IN_CONTEXT(cuEventQuery(event));
}

EXPORT cudaError_t cudaEventSynchronize(void *event)
{
    return IN_CONTEXT(cuEventSynchronize(event));
}

EXPORT cudaError_t cudaEventDestroy(void *event)
{
    return IN_CONTEXT(cuEventDestroy(event));
}

EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, void *start, void *end)
{
    return IN_CONTEXT(cuEventElapsedTime(milliseconds, start, end));
}

EXPORT cudaError_t cudaIpcGetEventHandle(ipc_handle *handle, void *event)
{
    return IN_CONTEXT(cuIpcGetEventHandle(handle, event));
}

EXPORT cudaError_t cudaIpcOpenEventHandle(void **event, ipc_handle handle)
{
    return IN_CONTEXT(cuIpcOpenEventHandle(event, handle));
}
