#include "stream.h"

#include <stdlib.h>

#include "context_memory.h"
#include "driver.h"
#include "graph.h"
#include "pool.h"
#include "work.h"

#define STREAM_MAGIC 0x7374726d

struct stream {
    unsigned magic;
    struct context *context;
    unsigned flags;
    int priority;
    uint64_t identity;
    struct graph *capture;
    uint64_t capture_identity;
};

enum { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1 };

static uint64_t next_identity = 16;

/* 0, 1 and 2 are the default, the legacy and the per-thread stream. */
static bool is_default(CUstream stream)
{
    return (uintptr_t)stream <= 2;
}

static bool is_stream(CUstream stream)
{
    return !is_default(stream) && stream->magic == STREAM_MAGIC;
}

struct graph *stream_capture(CUstream stream)
{
    return is_stream(stream) ? stream->capture : NULL;
}

int stream_device(CUstream stream, const struct context *current)
{
    return is_stream(stream) ? stream->context->device : current->device;
}

struct stream *stream_create(struct context *context, unsigned flags, int priority)
{
    struct stream *stream = driver_record(sizeof *stream);
    *stream = (struct stream){
        .magic = STREAM_MAGIC, .context = context, .flags = flags, .priority = priority,
        .identity = next_identity++};
    return stream;
}

DRIVER_API(cuStreamCreateWithPriority)(CUstream *stream, unsigned flags, int priority)
{
    struct context *context;
    CUresult result = driver_enter_context(&context);
    if (result == CUDA_SUCCESS) {
        if (context_memory_add_streams(context->memory))
            *stream = stream_create(context, flags, priority);
        else
            result = CUDA_ERROR_OUT_OF_MEMORY;
        driver_leave();
    }
    return result;
}

DRIVER_API(cuStreamCreate)(CUstream *stream, unsigned flags)
{
    return sim_cuStreamCreateWithPriority(stream, flags, 0);
}

DRIVER_API(cuStreamDestroy_v2)(CUstream stream)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (is_stream(stream)) {
        stream->magic = 0;
        free(stream);
    } else {
        result = CUDA_ERROR_INVALID_HANDLE;
    }
    driver_leave();
    return result;
}

DRIVER_API(cuStreamSynchronize)(CUstream stream)
{
    (void)stream;
    work_wait(work_end());
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        pools_synchronise();
        driver_leave();
    }
    return result;
}

DRIVER_API(cuStreamQuery)(CUstream stream)
{
    (void)stream;
    CUresult result = driver_check();
    return result == CUDA_SUCCESS && !work_is_done(work_end()) ? CUDA_ERROR_NOT_READY : result;
}

DRIVER_API(cuStreamGetPriority)(CUstream stream, int *priority)
{
    *priority = is_stream(stream) ? stream->priority : 0;
    return driver_check();
}

DRIVER_API(cuStreamGetFlags)(CUstream stream, unsigned *flags)
{
    *flags = is_stream(stream) ? stream->flags : 0;
    return driver_check();
}

DRIVER_API(cuStreamGetId)(CUstream stream, unsigned long long *identity)
{
    *identity = is_stream(stream) ? stream->identity : (uintptr_t)stream;
    return driver_check();
}

DRIVER_API(cuStreamGetCtx)(CUstream stream, CUcontext *context)
{
    if (!is_stream(stream))
        return context_current(context);
    *context = stream->context;
    return driver_check();
}

DRIVER_API(cuStreamGetCtx_v2)(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    *green = NULL;
    return sim_cuStreamGetCtx(stream, context);
}

DRIVER_API(cuStreamGetDevice)(CUstream stream, CUdevice *ordinal)
{
    struct context *context;
    CUresult result = sim_cuStreamGetCtx(stream, &context);
    if (result == CUDA_SUCCESS)
        *ordinal = context_ordinal(context);
    return result;
}

DRIVER_API(cuStreamWaitEvent)(CUstream stream, CUevent event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return driver_check();
}

DRIVER_API(cuStreamAddCallback)(CUstream stream, stream_callback callback, void *argument, unsigned flags)
{
    (void)flags;
    callback(stream, CUDA_SUCCESS, argument);
    return driver_check();
}

DRIVER_API(cuLaunchHostFunc)(CUstream stream, host_function function, void *argument)
{
    (void)stream;
    function(argument);
    return driver_check();
}

DRIVER_API(cuStreamSetAttribute)(CUstream stream, int attribute, const void *value)
{
    (void)stream, (void)attribute, (void)value;
    return driver_check();
}

DRIVER_API(cuStreamWaitValue32_v2)(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    (void)stream, (void)address, (void)value, (void)flags;
    return driver_check();
}

DRIVER_API(cuStreamWriteValue32_v2)(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    (void)stream, (void)address, (void)value, (void)flags;
    return driver_check();
}

/* ---- capture ---- */

DRIVER_API(cuStreamBeginCapture_v2)(CUstream stream, int mode)
{
    (void)mode;
    static uint64_t next_capture = 1;
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_stream(stream)) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if (stream->capture) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else {
        stream->capture = graph_create();
        stream->capture_identity = next_capture++;
    }
    driver_leave();
    return result;
}

DRIVER_API(cuStreamEndCapture)(CUstream stream, CUgraph *graph)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (is_stream(stream) && stream->capture) {
        *graph = stream->capture;
        stream->capture = NULL;
    } else {
        result = CUDA_ERROR_ILLEGAL_STATE;
    }
    driver_leave();
    return result;
}

DRIVER_API(cuStreamGetCaptureInfo)(CUstream stream, int *status, uint64_t *identity)
{
    bool capturing = is_stream(stream) && stream->capture;
    if (status)
        *status = capturing ? CAPTURE_ACTIVE : CAPTURE_NONE;
    if (identity)
        *identity = capturing ? stream->capture_identity : 0;
    return driver_check();
}

DRIVER_API(cuStreamGetCaptureInfo_v2)(
    CUstream stream, int *status, uint64_t *identity, CUgraph *graph, const CUgraphNode **dependencies,
    size_t *dependency_count)
{
    if (graph)
        *graph = stream_capture(stream);
    if (dependencies)
        *dependencies = NULL;
    if (dependency_count)
        *dependency_count = 0;
    return sim_cuStreamGetCaptureInfo(stream, status, identity);
}

DRIVER_API(cuStreamGetCaptureInfo_v3)(
    CUstream stream, int *status, uint64_t *identity, CUgraph *graph, const CUgraphNode **dependencies,
    const CUgraphEdgeData **edges, size_t *dependency_count)
{
    if (edges)
        *edges = NULL;
    return sim_cuStreamGetCaptureInfo_v2(stream, status, identity, graph, dependencies, dependency_count);
}

DRIVER_API(cuStreamIsCapturing)(CUstream stream, int *status)
{
    return sim_cuStreamGetCaptureInfo(stream, status, NULL);
}

DRIVER_API(cuThreadExchangeStreamCaptureMode)(int *mode)
{
    static __thread int current;
    int previous = current;
    current = *mode;
    *mode = previous;
    return driver_check();
}
