/*
 * Copies. Only the first GPUSIM_KEEP_BYTES are copied, so that a large job does not need as much host memory as a GPU has:
 * the rest of a longer copy is lost and reads as zeros.
 */
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "address_space.h"
#include "driver.h"
#include "settings.h"
#include "work.h"

static uint64_t keep_bytes;
static pthread_once_t keep_bytes_read = PTHREAD_ONCE_INIT;

static void read_keep_bytes(void)
{
    keep_bytes = settings_number("GPUSIM_KEEP_BYTES", MEBIBYTE);
}

static uint64_t kept(uint64_t bytes)
{
    pthread_once(&keep_bytes_read, read_keep_bytes);
    return bytes < keep_bytes ? bytes : keep_bytes;
}

static CUresult copy(uint64_t destination, uint64_t source, uint64_t bytes)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS || !bytes)
        return result;
    bool touches_device = address_space_contains(destination) || address_space_contains(source);
    uint64_t copied_bytes = touches_device ? kept(bytes) : bytes;
    memmove((void *)destination, (void *)source, copied_bytes);
    if (!address_space_contains(destination))
        memset((char *)destination + copied_bytes, 0, bytes - copied_bytes);
    return CUDA_SUCCESS;
}

DRIVER_API(cuMemcpy)(CUdeviceptr destination, CUdeviceptr source, size_t bytes)
{
    return copy(destination, source, bytes);
}

DRIVER_API(cuMemcpyAsync)(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream)
{
    (void)stream;
    return copy(destination, source, bytes);
}

DRIVER_API(cuMemcpyHtoD_v2)(CUdeviceptr destination, const void *source, size_t bytes)
{
    return copy(destination, (uint64_t)source, bytes);
}

DRIVER_API(cuMemcpyHtoDAsync_v2)(CUdeviceptr destination, const void *source, size_t bytes, CUstream stream)
{
    (void)stream;
    return copy(destination, (uint64_t)source, bytes);
}

DRIVER_API(cuMemcpyDtoH_v2)(void *destination, CUdeviceptr source, size_t bytes)
{
    work_wait(work_end());
    return copy((uint64_t)destination, source, bytes);
}

DRIVER_API(cuMemcpyDtoHAsync_v2)(void *destination, CUdeviceptr source, size_t bytes, CUstream stream)
{
    (void)stream;
    return copy((uint64_t)destination, source, bytes);
}

DRIVER_API(cuMemcpyDtoD_v2)(CUdeviceptr destination, CUdeviceptr source, size_t bytes)
{
    return copy(destination, source, bytes);
}

DRIVER_API(cuMemcpyDtoDAsync_v2)(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream)
{
    (void)stream;
    return copy(destination, source, bytes);
}

DRIVER_API(cuMemcpyPeer)(CUdeviceptr destination, CUcontext to, CUdeviceptr source, CUcontext from, size_t bytes)
{
    (void)to, (void)from;
    return copy(destination, source, bytes);
}

DRIVER_API(cuMemcpyPeerAsync)(
    CUdeviceptr destination, CUcontext to, CUdeviceptr source, CUcontext from, size_t bytes, CUstream stream)
{
    (void)to, (void)from, (void)stream;
    return copy(destination, source, bytes);
}

/* ---- two and three dimensions: arrays have no contents, linear memory is copied row by row ---- */

static uint64_t first_byte(const copy_2d_side *side)
{
    uint64_t base = side->memory_type == MEMORY_TYPE_HOST ? (uint64_t)side->host : side->device;
    return base + side->y * side->pitch_bytes + side->x_bytes;
}

static CUresult copy_2d(const CUDA_MEMCPY2D *request)
{
    const copy_2d_side *source = &request->source;
    const copy_2d_side *destination = &request->destination;
    CUresult result = driver_check();
    if (source->memory_type == MEMORY_TYPE_ARRAY || destination->memory_type == MEMORY_TYPE_ARRAY)
        return result;
    for (size_t row = 0; row < request->height && result == CUDA_SUCCESS; row++)
        result = copy(
            first_byte(destination) + row * destination->pitch_bytes, first_byte(source) + row * source->pitch_bytes,
            request->width_bytes);
    return result;
}

DRIVER_API(cuMemcpy2D_v2)(const CUDA_MEMCPY2D *request)
{
    return copy_2d(request);
}

DRIVER_API(cuMemcpy2DUnaligned_v2)(const CUDA_MEMCPY2D *request)
{
    return copy_2d(request);
}

DRIVER_API(cuMemcpy2DAsync_v2)(const CUDA_MEMCPY2D *request, CUstream stream)
{
    (void)stream;
    return copy_2d(request);
}

DRIVER_API(cuMemcpy3D_v2)(const void *request)
{
    (void)request;
    return driver_check();
}

DRIVER_API(cuMemcpy3DAsync_v2)(const void *request, CUstream stream)
{
    (void)request, (void)stream;
    return driver_check();
}
