/* Green contexts: a share of the multiprocessors. Each retains the primary context, which owns its memory. */
#include <stdlib.h>

#include "context.h"
#include "device.h"
#include "driver.h"
#include "stream.h"

struct green_context {
    struct context view; /* the result of cuCtxFromGreenCtx; its owner is the primary context */
    CUdevResource resource;
};

struct device_resource_list {
    CUdevResource first;
};

enum { MULTIPROCESSORS = 16 }; /* number of the device attribute */

DRIVER_API(cuDeviceGetDevResource)(CUdevice ordinal, CUdevResource *resource, int type)
{
    int device;
    CUresult result = device_of_ordinal(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (type != DEVICE_RESOURCE_SM)
        return CUDA_ERROR_NOT_SUPPORTED;
    *resource = (CUdevResource){.type = type};
    resource->sm.sm_count = (unsigned)device_attribute(MULTIPROCESSORS);
    resource->sm.minimum_partition = 8;
    resource->sm.coscheduled_alignment = 8;
    return CUDA_SUCCESS;
}

DRIVER_API(cuDevSmResourceSplitByCount)(
    CUdevResource *groups, unsigned *group_count, const CUdevResource *input, CUdevResource *remaining,
    unsigned flags, unsigned minimum)
{
    (void)flags;
    unsigned each = (unsigned)round_up(minimum ? minimum : 1, 8);
    unsigned possible = input->sm.sm_count / each;
    if (!groups) {
        *group_count = possible;
        return driver_check();
    }
    if (*group_count > possible)
        *group_count = possible;
    for (unsigned group = 0; group < *group_count; group++) {
        groups[group] = *input;
        groups[group].sm.sm_count = each;
    }
    if (remaining) {
        *remaining = *input;
        remaining->sm.sm_count -= each * *group_count;
    }
    return driver_check();
}

DRIVER_API(cuDevResourceGenerateDesc)(CUdevResourceDesc *list, CUdevResource *resources, unsigned count)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *list = driver_record(sizeof **list);
    (*list)->first = resources[0];
    return driver_check();
}

DRIVER_API(cuGreenCtxCreate)(CUgreenCtx *green_out, CUdevResourceDesc list, CUdevice ordinal, unsigned flags)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    int device;
    struct context *primary;
    result = list ? device_of_ordinal(ordinal, &device) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = context_retain_primary(device, &primary);
    if (result == CUDA_SUCCESS) {
        struct green_context *green = driver_record(sizeof *green);
        green->view = (struct context){
            .device = device, .alive = true, .flags = flags, .identity = primary->identity, .owner = primary};
        green->resource = list->first;
        *green_out = green;
    }
    driver_leave();
    return result;
}

DRIVER_API(cuGreenCtxDestroy)(CUgreenCtx green)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!green || !green->view.alive) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    } else {
        /* The record is kept: the context may be current on some thread. */
        green->view.alive = false;
        context_release_primary(green->view.device);
    }
    driver_leave();
    return result;
}

DRIVER_API(cuCtxFromGreenCtx)(CUcontext *context, CUgreenCtx green)
{
    if (!green || !green->view.alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = &green->view;
    return driver_check();
}

DRIVER_API(cuGreenCtxGetDevResource)(CUgreenCtx green, CUdevResource *resource, int type)
{
    if (!green || type != DEVICE_RESOURCE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    *resource = green->resource;
    return driver_check();
}

DRIVER_API(cuGreenCtxStreamCreate)(CUstream *stream, CUgreenCtx green, unsigned flags, int priority)
{
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        *stream = stream_create(&green->view, flags, priority);
        driver_leave();
    }
    return result;
}
