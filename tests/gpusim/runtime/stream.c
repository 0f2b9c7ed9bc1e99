#include "context.h"
#include "stand_in.h"

EXPORT cudaError_t cudaStreamCreate(void **stream)
{
    return IN_CONTEXT(cuStreamCreate(stream, 0));
}

EXPORT cudaError_t cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    return IN_CONTEXT(cuStreamCreate(stream, flags));
}

EXPORT cudaError_t cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    return IN_CONTEXT(cuStreamCreateWithPriority(stream, flags, priority));
}

EXPORT cudaError_t cudaStreamDestroy(void *stream)
{
    return IN_CONTEXT(cuStreamDestroy(stream));
}

EXPORT cudaError_t cudaStreamQuery(void *stream)
{
    return IN_CONTEXT(cuStreamQuery(stream));
}

EXPORT cudaError_t cudaStreamSynchronize(void *stream)
{
    return IN_CONTEXT(cuStreamSynchronize(stream));
}

EXPORT cudaError_t cudaStreamGetPriority(void *stream, int *priority)
{
    return IN_CONTEXT(cuStreamGetPriority(stream, priority));
}

EXPORT cudaError_t cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    return IN_CONTEXT(cuStreamWaitEvent(stream, event, flags));
}

EXPORT cudaError_t cudaStreamAddCallback(void *stream, stream_callback callback, void *argument, unsigned flags)
{
    return IN_CONTEXT(cuStreamAddCallback(stream, callback, argument, flags));
}

EXPORT cudaError_t cudaLaunchHostFunc(void *stream, host_function function, void *argument)
{
    return IN_CONTEXT(cuLaunchHostFunc(stream, function, argument));
}
