/* Fills, and the hints of managed memory. */
#include <string.h>

#include "address_space.h"
#include "driver.h"
#include "settings.h"

static void fill_elements(uint64_t address, unsigned element_bytes, uint32_t value, uint64_t count)
{
    if (element_bytes == 1) {
        memset((void *)address, (int)value, count);
        return;
    }
    for (uint64_t index = 0; index < count; index++)
        memcpy((char *)address + index * element_bytes, &value, element_bytes);
}

/* A large fill with zeros discards the pages; any other large fill writes only the bytes that are kept. */
static CUresult fill(uint64_t address, unsigned element_bytes, uint32_t value, uint64_t count)
{
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS || !address_space_contains(address))
        return result;
    uint64_t keep_bytes = settings_number("GPUSIM_KEEP_BYTES", MEBIBYTE);
    uint64_t bytes = count * element_bytes;
    if (bytes > keep_bytes && value == 0) {
        address_space_discard(address, bytes);
        return CUDA_SUCCESS;
    }
    fill_elements(address, element_bytes, value, bytes > keep_bytes ? keep_bytes / element_bytes : count);
    return CUDA_SUCCESS;
}

DRIVER_API(cuMemsetD8_v2)(CUdeviceptr address, unsigned char value, size_t count)
{
    return fill(address, 1, value, count);
}

DRIVER_API(cuMemsetD16_v2)(CUdeviceptr address, unsigned short value, size_t count)
{
    return fill(address, 2, value, count);
}

DRIVER_API(cuMemsetD32_v2)(CUdeviceptr address, unsigned value, size_t count)
{
    return fill(address, 4, value, count);
}

DRIVER_API(cuMemsetD8Async)(CUdeviceptr address, unsigned char value, size_t count, CUstream stream)
{
    (void)stream;
    return fill(address, 1, value, count);
}

DRIVER_API(cuMemsetD16Async)(CUdeviceptr address, unsigned short value, size_t count, CUstream stream)
{
    (void)stream;
    return fill(address, 2, value, count);
}

DRIVER_API(cuMemsetD32Async)(CUdeviceptr address, unsigned value, size_t count, CUstream stream)
{
    (void)stream;
    return fill(address, 4, value, count);
}

static CUresult fill_rows(uint64_t address, uint64_t pitch_bytes, unsigned char value, uint64_t width, uint64_t height)
{
    CUresult result = driver_check();
    for (uint64_t row = 0; row < height && result == CUDA_SUCCESS; row++)
        result = fill(address + row * pitch_bytes, 1, value, width);
    return result;
}

DRIVER_API(cuMemsetD2D8_v2)(CUdeviceptr address, size_t pitch_bytes, unsigned char value, size_t width, size_t height)
{
    return fill_rows(address, pitch_bytes, value, width, height);
}

DRIVER_API(cuMemsetD2D8Async)(
    CUdeviceptr address, size_t pitch_bytes, unsigned char value, size_t width, size_t height, CUstream stream)
{
    (void)stream;
    return fill_rows(address, pitch_bytes, value, width, height);
}

/* ---- residency hints: managed memory is never resident here ---- */

DRIVER_API(cuMemPrefetchAsync)(CUdeviceptr address, size_t bytes, CUdevice ordinal, CUstream stream)
{
    (void)address, (void)bytes, (void)ordinal, (void)stream;
    return driver_check();
}

DRIVER_API(cuMemPrefetchAsync_v2)(
    CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream)
{
    (void)address, (void)bytes, (void)location, (void)flags, (void)stream;
    return driver_check();
}

DRIVER_API(cuMemAdvise)(CUdeviceptr address, size_t bytes, int advice, CUdevice ordinal)
{
    (void)address, (void)bytes, (void)advice, (void)ordinal;
    return driver_check();
}

DRIVER_API(cuMemAdvise_v2)(CUdeviceptr address, size_t bytes, int advice, CUmemLocation location)
{
    (void)address, (void)bytes, (void)advice, (void)location;
    return driver_check();
}

DRIVER_API(cuMemDiscardBatchAsync)(
    CUdeviceptr *addresses, size_t *sizes, size_t count, unsigned long long flags, CUstream stream)
{
    (void)addresses, (void)sizes, (void)count, (void)flags, (void)stream;
    return driver_check();
}
