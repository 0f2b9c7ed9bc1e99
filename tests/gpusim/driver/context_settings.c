/* Settings of a context, and its synchronisation, at which pools release memory. */
#include "context.h"
#include "context_memory.h"
#include "driver.h"
#include "pool.h"
#include "work.h"

enum { STACK = 0, LIMITS = 7 };

/* Stack, printf FIFO, device heap, sync depth, pending launches, L2 granularity, persisting L2. */
static size_t limits[LIMITS] = {1024, 1048576, 8388608, 2, 2048, 128, 0};

/* A stack is local memory, which is allocated for all threads that the device can hold. */
static bool stack_fits(size_t bytes)
{
    struct context *context;
    if (!context_memory_has_extras() || context_current(&context) != CUDA_SUCCESS)
        return true;
    return context_memory_fit_local(context->memory, bytes);
}

DRIVER_API(cuCtxSetLimit)(unsigned limit, size_t value)
{
    if (limit >= LIMITS)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        result = limit == STACK && !stack_fits(value) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
        if (result == CUDA_SUCCESS)
            limits[limit] = value;
        driver_leave();
    }
    return result;
}

DRIVER_API(cuCtxGetLimit)(size_t *value, unsigned limit)
{
    if (limit >= LIMITS)
        return CUDA_ERROR_NOT_SUPPORTED;
    *value = limits[limit];
    return driver_check();
}

DRIVER_API(cuCtxSynchronize)(void)
{
    struct context *context;
    work_wait(work_end());
    CUresult result = driver_enter_context(&context);
    if (result == CUDA_SUCCESS) {
        pools_synchronise();
        driver_leave();
    }
    return result;
}

DRIVER_API(cuCtxSynchronize_v2)(CUcontext context)
{
    if (!context)
        return sim_cuCtxSynchronize();
    work_wait(work_end());
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        pools_synchronise();
        driver_leave();
    }
    return result;
}

DRIVER_API(cuCtxGetStreamPriorityRange)(int *least, int *greatest)
{
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return driver_check();
}

DRIVER_API(cuCtxGetApiVersion)(CUcontext context, unsigned *version)
{
    (void)context;
    *version = 3020;
    return driver_check();
}

DRIVER_API(cuCtxSetFlags)(unsigned flags)
{
    (void)flags;
    return driver_check();
}

DRIVER_API(cuCtxGetCacheConfig)(int *configuration)
{
    *configuration = 0;
    return driver_check();
}

DRIVER_API(cuCtxSetCacheConfig)(int configuration)
{
    (void)configuration;
    return driver_check();
}

DRIVER_API(cuCtxGetSharedMemConfig)(int *configuration)
{
    *configuration = 0;
    return driver_check();
}

DRIVER_API(cuCtxSetSharedMemConfig)(int configuration)
{
    (void)configuration;
    return driver_check();
}

DRIVER_API(cuCtxEnablePeerAccess)(CUcontext peer, unsigned flags)
{
    (void)peer, (void)flags;
    return driver_check();
}

DRIVER_API(cuCtxDisablePeerAccess)(CUcontext peer)
{
    (void)peer;
    return driver_check();
}

DRIVER_API(cuCtxResetPersistingL2Cache)(void)
{
    return driver_check();
}

DRIVER_API(cuProfilerStart)(void)
{
    return driver_check();
}

DRIVER_API(cuProfilerStop)(void)
{
    return driver_check();
}
