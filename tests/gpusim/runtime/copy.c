/* Copies and fills. The direction given by the caller is ignored: addresses identify host and device memory. */
#include "context.h"
#include "stand_in.h"

EXPORT cudaError_t cudaMemcpy(void *destination, const void *source, size_t bytes, int direction)
{
    (void)direction;
    return IN_CONTEXT(cuMemcpy((device_address)destination, (device_address)source, bytes));
}

EXPORT cudaError_t cudaMemcpyAsync(void *destination, const void *source, size_t bytes, int direction, void *stream)
{
    (void)direction;
    return IN_CONTEXT(cuMemcpyAsync((device_address)destination, (device_address)source, bytes, stream));
}

EXPORT cudaError_t cudaMemcpyPeerAsync(void *destination, int destination_device, const void *source, int source_device,
                                       size_t bytes, void *stream)
{
    (void)destination_device;
    (void)source_device;
    return IN_CONTEXT(cuMemcpyAsync((device_address)destination, (device_address)source, bytes, stream));
}

EXPORT cudaError_t cudaMemcpy2DAsync(void *destination, size_t destination_pitch_bytes, const void *source,
                                     size_t source_pitch_bytes, size_t width_bytes, size_t height, int direction,
                                     void *stream)
{
    (void)direction;
    const copy_2d rows = {
        .source = {.memory_type = DRIVER_MEMORY_UNIFIED,
                   .device = (device_address)source,
                   .pitch_bytes = source_pitch_bytes},
        .destination = {.memory_type = DRIVER_MEMORY_UNIFIED,
                        .device = (device_address)destination,
                        .pitch_bytes = destination_pitch_bytes},
        .width_bytes = width_bytes,
        .height = height,
    };
    return IN_CONTEXT(cuMemcpy2DAsync(&rows, stream));
}

EXPORT cudaError_t cudaMemset(void *address, int value, size_t bytes)
{
    return IN_CONTEXT(cuMemsetD8((device_address)address, (unsigned char)value, bytes));
}

EXPORT cudaError_t cudaMemsetAsync(void *address, int value, size_t bytes, void *stream)
{
    return IN_CONTEXT(cuMemsetD8Async((device_address)address, (unsigned char)value, bytes, stream));
}
