#include "array.h"

#include <stdlib.h>

#include "accounting.h"
#include "allocation.h"
#include "driver.h"
#include "log.h"
#include "memory.h"

struct array {
    struct context *context;
    struct allocation backing; /* its texels; bytes is 0 if the memory is mapped later */
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    struct array *levels; /* views of a mipmapped array's levels, without memory */
    struct array *next;
};

static struct array *arrays;

/* Bytes of one channel, by format number; block-compressed and video formats are not simulated. */
static unsigned channel_bytes(int format)
{
    switch (format) {
    case 0x01:
    case 0x08: return 1; /* 8-bit integers */
    case 0x02:
    case 0x09:
    case 0x10: return 2; /* 16-bit integers, half */
    case 0x03:
    case 0x0a:
    case 0x20: return 4; /* 32-bit integers, float */
    default: return 0;
    }
}

static uint64_t extent(uint64_t length, unsigned level)
{
    uint64_t shrunk = length >> level;
    return shrunk ? shrunk : 1;
}

/* width * max(height, 1) * max(depth, 1) * channels * channel bytes, summed over the levels; 0 on overflow. */
static uint64_t texel_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels)
{
    uint64_t total_bytes = 0;
    for (unsigned level = 0; level < levels; level++) {
        uint64_t level_bytes = (uint64_t)channel_bytes(descriptor->format) * descriptor->channels;
        bool too_large = __builtin_mul_overflow(level_bytes, extent(descriptor->width, level), &level_bytes)
            || __builtin_mul_overflow(level_bytes, extent(descriptor->height, level), &level_bytes)
            || __builtin_mul_overflow(level_bytes, extent(descriptor->depth, level), &level_bytes)
            || __builtin_add_overflow(total_bytes, level_bytes, &total_bytes);
        if (too_large)
            return 0;
    }
    return total_bytes;
}

static CUresult create(
    struct array **created, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels, struct context *context)
{
    uint64_t bytes = texel_bytes(descriptor, levels);
    if (!descriptor->width || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (descriptor->flags & (ARRAY_SPARSE | ARRAY_DEFERRED_MAPPING))
        bytes = 0;
    struct array array = {
        .context = context, .descriptor = *descriptor,
        .backing = {.bytes = bytes, .device = context->device, .context = context}};
    CUresult result = bytes ? memory_back(&array.backing) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    accounting_allocated(context->device, LEDGER_ARRAY, bytes);
    array.next = arrays;
    arrays = driver_record(sizeof array);
    *arrays = array;
    *created = arrays;
    return CUDA_SUCCESS;
}

static void release(struct array **link)
{
    struct array *array = *link;
    *link = array->next;
    if (array->backing.bytes)
        memory_unback(&array->backing);
    while (array->levels) {
        struct array *level = array->levels;
        array->levels = level->next;
        free(level);
    }
    free(array);
}

void arrays_free_context(struct context *context)
{
    for (struct array **link = &arrays; *link;) {
        if ((*link)->context == context) {
            accounting_remove(context->device, LEDGER_ARRAY, (*link)->backing.bytes);
            release(link);
        } else {
            link = &(*link)->next;
        }
    }
}

static CUresult create_checked(struct array **array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels)
{
    struct context *context;
    CUresult result = driver_enter_context(&context);
    if (result == CUDA_SUCCESS) {
        result = create(array, descriptor, levels, context);
        driver_leave();
    }
    log_line(LOG_CALLS, "array %zu x %zu x %zu = %d", descriptor->width, descriptor->height, descriptor->depth, result);
    return accounting_outcome(result);
}

DRIVER_API(cuArrayCreate_v2)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    CUDA_ARRAY3D_DESCRIPTOR full = {
        .width = descriptor->width, .height = descriptor->height, .format = descriptor->format,
        .channels = descriptor->channels};
    return create_checked(array, &full, 1);
}

DRIVER_API(cuArray3DCreate_v2)(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    return create_checked(array, descriptor, 1);
}

DRIVER_API(cuMipmappedArrayCreate)(
    CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels)
{
    if (levels > 32)
        return accounting_outcome(CUDA_ERROR_INVALID_VALUE);
    return create_checked(array, descriptor, levels ? levels : 1);
}

static CUresult destroy(struct array *array)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct array **link = &arrays;
    while (*link && *link != array)
        link = &(*link)->next;
    if (*link) {
        accounting_freed(array->context->device, LEDGER_ARRAY, array->backing.bytes);
        release(link);
    } else {
        result = CUDA_ERROR_INVALID_HANDLE;
    }
    driver_leave();
    log_line(LOG_CALLS, "array %p destroyed = %d", (void *)array, result);
    return result;
}

DRIVER_API(cuArrayDestroy)(CUarray array)
{
    return destroy(array);
}

DRIVER_API(cuMipmappedArrayDestroy)(CUmipmappedArray array)
{
    return destroy(array);
}

DRIVER_API(cuMipmappedArrayGetLevel)(CUarray *level_out, CUmipmappedArray array, unsigned level)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct array *view = driver_record(sizeof *view);
    view->context = array->context;
    view->descriptor = array->descriptor;
    view->descriptor.width = extent(array->descriptor.width, level);
    view->descriptor.height = extent(array->descriptor.height, level);
    view->next = array->levels;
    array->levels = view;
    *level_out = view;
    driver_leave();
    return CUDA_SUCCESS;
}

DRIVER_API(cuArray3DGetDescriptor_v2)(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array)
{
    *descriptor = array->descriptor;
    return driver_check();
}

DRIVER_API(cuArrayGetDescriptor_v2)(CUDA_ARRAY_DESCRIPTOR *descriptor, CUarray array)
{
    *descriptor = (CUDA_ARRAY_DESCRIPTOR){
        .width = array->descriptor.width, .height = array->descriptor.height, .format = array->descriptor.format,
        .channels = array->descriptor.channels};
    return driver_check();
}

/* A sparse array only maps pages: the memory comes from cuMemCreate. */
DRIVER_API(cuMemMapArrayAsync)(void *list, unsigned count, CUstream stream)
{
    (void)list, (void)count, (void)stream;
    return driver_check();
}
