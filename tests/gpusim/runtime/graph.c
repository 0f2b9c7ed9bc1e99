/* Stream capture, and replay of graphs. */
#include "context.h"
#include "stand_in.h"

EXPORT cudaError_t cudaStreamIsCapturing(void *stream, int *status)
{
    return IN_CONTEXT(cuStreamIsCapturing(stream, status));
}

EXPORT cudaError_t cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void **graph,
                                               const void ***nodes, size_t *count)
{
    uint64_t capture = 0;
    const cudaError_t result = IN_CONTEXT(cuStreamGetCaptureInfo(stream, status, &capture, graph, nodes, count));
    if (id)
        *id = capture;
    return result;
}

#if CUDA_MAJOR >= 13
/* CUDA 13 changed the arguments of the unsuffixed name to these. The driver records no edge data. */
EXPORT cudaError_t cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph,
                                            const void ***nodes, const void **edges, size_t *count)
{
    if (edges)
        *edges = NULL;
    return cudaStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}
#endif

EXPORT cudaError_t cudaStreamBeginCapture(void *stream, int mode)
{
    return IN_CONTEXT(cuStreamBeginCapture(stream, mode));
}

EXPORT cudaError_t cudaStreamEndCapture(void *stream, void **graph)
{
    return IN_CONTEXT(cuStreamEndCapture(stream, graph));
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(int *mode)
{
    return IN_CONTEXT(cuThreadExchangeStreamCaptureMode(mode));
}

EXPORT cudaError_t cudaGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags)
{
    return IN_CONTEXT(cuGraphInstantiateWithFlags(executable, graph, flags));
}

EXPORT cudaError_t cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags)
{
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

EXPORT cudaError_t cudaGraphLaunch(void *executable, void *stream)
{
    return IN_CONTEXT(cuGraphLaunch(executable, stream));
}

EXPORT cudaError_t cudaGraphDestroy(void *graph)
{
    return IN_CONTEXT(cuGraphDestroy(graph));
}

EXPORT cudaError_t cudaGraphExecDestroy(void *executable)
{
    return IN_CONTEXT(cuGraphExecDestroy(executable));
}

EXPORT cudaError_t cudaGraphGetNodes(void *graph, void **nodes, size_t *count)
{
    return IN_CONTEXT(cuGraphGetNodes(graph, nodes, count));
}
