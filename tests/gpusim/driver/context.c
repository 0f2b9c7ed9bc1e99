#include "context.h"

#include <stdlib.h>

#include "accounting.h"
#include "array.h"
#include "context_memory.h"
#include "device.h"
#include "driver.h"
#include "log.h"
#include "memory.h"

#define STACK_DEPTH 64

static struct context primaries[LEDGER_DEVICES];
static uint64_t next_identity = 1;

static __thread struct {
    struct context *contexts[STACK_DEPTH];
    int depth;
} stack;

static struct context *top(void)
{
    return stack.depth ? stack.contexts[stack.depth - 1] : NULL;
}

void contexts_start(void)
{
    context_memory_start();
    for (int device = 0; device < LEDGER_DEVICES; device++)
        primaries[device] = (struct context){.device = device, .primary = true, .identity = next_identity++};
}

CUresult context_current(struct context **current)
{
    struct context *context = top();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct context *owner = context->owner ? context->owner : context;
    if (!context->alive || !owner->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *current = owner;
    return CUDA_SUCCESS;
}

CUdevice context_ordinal(const struct context *context)
{
    return device_ordinal(context->device);
}

static CUresult open_context(struct context *context)
{
    context->memory = context_memory_take(context->device);
    if (!context->memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    accounting_context_opened(context->device);
    context->alive = true;
    return CUDA_SUCCESS;
}

static void close_context(struct context *context)
{
    memory_free_context(context);
    arrays_free_context(context);
    context_memory_give(context->memory);
    context->memory = NULL;
    accounting_context_closed(context->device);
    context->alive = false;
    context->references = 0;
}

CUresult context_retain_primary(int device, struct context **primary)
{
    struct context *context = &primaries[device];
    CUresult result = context->alive ? CUDA_SUCCESS : open_context(context);
    if (result != CUDA_SUCCESS)
        return result;
    context->references++;
    *primary = context;
    return CUDA_SUCCESS;
}

CUresult context_release_primary(int device)
{
    struct context *context = &primaries[device];
    if (!context->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--context->references == 0)
        close_context(context);
    return CUDA_SUCCESS;
}

/* ---- primary contexts ---- */

static CUresult enter_device(CUdevice ordinal, int *device)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = device_of_ordinal(ordinal, device);
    if (result != CUDA_SUCCESS)
        driver_leave();
    return result;
}

DRIVER_API(cuDevicePrimaryCtxRetain)(CUcontext *context, CUdevice ordinal)
{
    int device;
    CUresult result = enter_device(ordinal, &device);
    if (result == CUDA_SUCCESS) {
        result = context_retain_primary(device, context);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuDevicePrimaryCtxRetain(%d) = %d", ordinal, result);
    return result;
}

DRIVER_API(cuDevicePrimaryCtxRelease_v2)(CUdevice ordinal)
{
    int device;
    CUresult result = enter_device(ordinal, &device);
    if (result == CUDA_SUCCESS) {
        result = context_release_primary(device);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuDevicePrimaryCtxRelease(%d) = %d", ordinal, result);
    return result;
}

DRIVER_API(cuDevicePrimaryCtxReset_v2)(CUdevice ordinal)
{
    int device;
    CUresult result = enter_device(ordinal, &device);
    if (result == CUDA_SUCCESS) {
        if (primaries[device].alive)
            close_context(&primaries[device]);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuDevicePrimaryCtxReset(%d) = %d", ordinal, result);
    return result;
}

DRIVER_API(cuDevicePrimaryCtxSetFlags_v2)(CUdevice ordinal, unsigned flags)
{
    int device;
    CUresult result = device_of_ordinal(ordinal, &device);
    if (result == CUDA_SUCCESS)
        primaries[device].flags = flags;
    return result;
}

DRIVER_API(cuDevicePrimaryCtxGetState)(CUdevice ordinal, unsigned *flags, int *active)
{
    int device;
    CUresult result = device_of_ordinal(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    *flags = primaries[device].flags;
    *active = primaries[device].alive;
    return CUDA_SUCCESS;
}

/* ---- other contexts ---- */

static CUresult create(struct context **created, unsigned flags, CUdevice ordinal)
{
    int device;
    CUresult result = enter_device(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    /* The record of a destroyed context is kept: it may still be current on other threads. */
    struct context *context = driver_record(sizeof *context);
    *context = (struct context){.device = device, .flags = flags, .identity = next_identity++};
    result = stack.depth < STACK_DEPTH ? open_context(context) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        stack.contexts[stack.depth++] = context;
        *created = context;
    } else {
        free(context);
    }
    driver_leave();
    log_line(LOG_CALLS, "cuCtxCreate(%d) = %d", ordinal, result);
    return result;
}

DRIVER_API(cuCtxCreate_v2)(CUcontext *context, unsigned flags, CUdevice ordinal)
{
    return create(context, flags, ordinal);
}

DRIVER_API(cuCtxCreate_v3)(CUcontext *context, void *affinity, int affinities, unsigned flags, CUdevice ordinal)
{
    (void)affinity, (void)affinities;
    return create(context, flags, ordinal);
}

DRIVER_API(cuCtxCreate_v4)(CUcontext *context, void *parameters, unsigned flags, CUdevice ordinal)
{
    (void)parameters;
    return create(context, flags, ordinal);
}

DRIVER_API(cuCtxDestroy_v2)(CUcontext context)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!context || context->primary || context->owner || !context->alive) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    } else {
        close_context(context);
        if (top() == context)
            stack.depth--;
    }
    driver_leave();
    log_line(LOG_CALLS, "cuCtxDestroy(%p) = %d", (void *)context, result);
    return result;
}

/* ---- context stack of the calling thread ---- */

DRIVER_API(cuCtxPushCurrent_v2)(CUcontext context)
{
    CUresult ready = driver_check();
    if (ready != CUDA_SUCCESS)
        return ready;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stack.depth == STACK_DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    stack.contexts[stack.depth++] = context;
    return CUDA_SUCCESS;
}

DRIVER_API(cuCtxPopCurrent_v2)(CUcontext *context)
{
    if (!stack.depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack.depth--;
    if (context)
        *context = stack.contexts[stack.depth];
    return CUDA_SUCCESS;
}

DRIVER_API(cuCtxSetCurrent)(CUcontext context)
{
    CUresult ready = driver_check();
    if (ready != CUDA_SUCCESS)
        return ready;
    if (!context)
        stack.depth -= stack.depth > 0;
    else if (stack.depth)
        stack.contexts[stack.depth - 1] = context;
    else
        stack.contexts[stack.depth++] = context;
    return CUDA_SUCCESS;
}

DRIVER_API(cuCtxGetCurrent)(CUcontext *context)
{
    *context = top();
    return driver_check();
}

DRIVER_API(cuCtxGetDevice_v2)(CUdevice *ordinal, CUcontext context)
{
    if (!context)
        context = top();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *ordinal = context_ordinal(context);
    return CUDA_SUCCESS;
}

DRIVER_API(cuCtxGetDevice)(CUdevice *ordinal)
{
    return sim_cuCtxGetDevice_v2(ordinal, NULL);
}

DRIVER_API(cuCtxGetId)(CUcontext context, unsigned long long *identity)
{
    if (!context)
        context = top();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *identity = context->identity;
    return CUDA_SUCCESS;
}

DRIVER_API(cuCtxGetFlags)(unsigned *flags)
{
    *flags = top() ? top()->flags : 0;
    return CUDA_SUCCESS;
}
