/* Kernel attributes, launches that only take time, and occupancy. */
#include <stdio.h>
#include <string.h>

#include "context.h"
#include "context_memory.h"
#include "driver.h"
#include "log.h"
#include "module.h"
#include "settings.h"
#include "work.h"

enum {
    FUNCTION_MAX_THREADS_PER_BLOCK = 0,
    FUNCTION_REGISTERS = 4,
    FUNCTION_PTX_VERSION = 5,
    FUNCTION_BINARY_VERSION = 6,
    FUNCTION_MAX_DYNAMIC_SHARED = 8,
};

DRIVER_API(cuKernelGetFunction)(CUfunction *function, CUkernel kernel)
{
    *function = kernel;
    return driver_check();
}

DRIVER_API(cuKernelGetLibrary)(CUlibrary *library, CUkernel kernel)
{
    *library = kernel->module;
    return driver_check();
}

DRIVER_API(cuKernelGetName)(const char **name, CUkernel kernel)
{
    *name = kernel->name;
    return driver_check();
}

DRIVER_API(cuFuncGetName)(const char **name, CUfunction function)
{
    *name = function->name;
    return driver_check();
}

DRIVER_API(cuFuncGetModule)(CUmodule *module, CUfunction function)
{
    *module = function->module;
    return driver_check();
}

DRIVER_API(cuFuncIsLoaded)(int *state, CUfunction function)
{
    (void)function;
    *state = 1;
    return driver_check();
}

DRIVER_API(cuFuncLoad)(CUfunction function)
{
    (void)function;
    return driver_check();
}

DRIVER_API(cuFuncGetAttribute)(int *value, int attribute, CUfunction function)
{
    switch (attribute) {
    case FUNCTION_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case FUNCTION_REGISTERS: *value = 32; break;
    case FUNCTION_PTX_VERSION:
    case FUNCTION_BINARY_VERSION: *value = 90; break;
    case FUNCTION_MAX_DYNAMIC_SHARED:
        *value = function->dynamic_shared_bytes ? function->dynamic_shared_bytes : 49152;
        break;
    default: *value = 0;
    }
    return driver_check();
}

DRIVER_API(cuFuncSetAttribute)(CUfunction function, int attribute, int value)
{
    if (attribute == FUNCTION_MAX_DYNAMIC_SHARED)
        function->dynamic_shared_bytes = value;
    return driver_check();
}

DRIVER_API(cuKernelGetAttribute)(int *value, int attribute, CUkernel kernel, CUdevice ordinal)
{
    (void)ordinal;
    return sim_cuFuncGetAttribute(value, attribute, kernel);
}

DRIVER_API(cuKernelSetAttribute)(int attribute, int value, CUkernel kernel, CUdevice ordinal)
{
    (void)ordinal;
    return sim_cuFuncSetAttribute(kernel, attribute, value);
}

DRIVER_API(cuFuncSetCacheConfig)(CUfunction function, int configuration)
{
    (void)function, (void)configuration;
    return driver_check();
}

DRIVER_API(cuKernelSetCacheConfig)(CUkernel kernel, int configuration, CUdevice ordinal)
{
    (void)kernel, (void)configuration, (void)ordinal;
    return driver_check();
}

DRIVER_API(cuFuncSetSharedMemConfig)(CUfunction function, int configuration)
{
    (void)function, (void)configuration;
    return driver_check();
}

/* Local memory per thread of a kernel: the number in a name like `local_1952`, else 0. */
static uint64_t local_bytes(const struct kernel *kernel)
{
    unsigned long bytes;
    return sscanf(kernel->name, "local_%lu", &bytes) == 1 && bytes < MEBIBYTE ? bytes : 0;
}

/* The first launch loads the code to the device; local memory grows if the kernel needs more. */
static CUresult load(struct kernel *kernel)
{
    struct context *context;
    CUresult result = driver_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!kernel->loaded) {
        bool fits = context_memory_add_code(context->memory)
            && context_memory_fit_local(context->memory, local_bytes(kernel));
        result = fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        kernel->loaded = fits;
    }
    driver_leave();
    return result;
}

static CUresult launch(struct kernel *kernel, uint64_t blocks)
{
    work_launch(blocks);
    log_line(LOG_EVERYTHING, "launch %s", kernel->name);
    return context_memory_has_extras() && !kernel->loaded ? load(kernel) : driver_check();
}

DRIVER_API(cuLaunchKernel)(
    CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra)
{
    (void)block_x, (void)block_y, (void)block_z;
    (void)shared_bytes, (void)stream, (void)parameters, (void)extra;
    return launch(function, (uint64_t)grid_x * grid_y * grid_z);
}

DRIVER_API(cuLaunchKernelEx)(const void *configuration, CUfunction function, void **parameters, void **extra)
{
    (void)parameters, (void)extra;
    /* The first three 32-bit words are the grid. */
    const unsigned *grid = configuration;
    return launch(function, (uint64_t)grid[0] * grid[1] * grid[2]);
}

DRIVER_API(cuLaunchCooperativeKernel)(
    CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters)
{
    (void)block_x, (void)block_y, (void)block_z;
    (void)shared_bytes, (void)stream, (void)parameters;
    return launch(function, (uint64_t)grid_x * grid_y * grid_z);
}

/* ---- occupancy ---- */

DRIVER_API(cuOccupancyMaxActiveBlocksPerMultiprocessor)(
    int *blocks, CUfunction function, int block_size, size_t shared_bytes)
{
    (void)function, (void)shared_bytes;
    int fitting = block_size > 0 ? 2048 / block_size : 1;
    *blocks = fitting < 1 ? 1 : fitting > 32 ? 32 : fitting;
    return driver_check();
}

DRIVER_API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(
    int *blocks, CUfunction function, int block_size, size_t shared_bytes, unsigned flags)
{
    (void)flags;
    return sim_cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size, shared_bytes);
}

DRIVER_API(cuOccupancyMaxPotentialBlockSize)(
    int *grid_size, int *block_size, CUfunction function, void *shared_of_block_size, size_t shared_bytes, int limit)
{
    (void)function, (void)shared_of_block_size, (void)shared_bytes, (void)limit;
    *grid_size = 132;
    *block_size = 1024;
    return driver_check();
}

DRIVER_API(cuOccupancyMaxActiveClusters)(int *clusters, CUfunction function, const void *configuration)
{
    (void)function, (void)configuration;
    *clusters = 66;
    return driver_check();
}

DRIVER_API(cuOccupancyMaxPotentialClusterSize)(int *size, CUfunction function, const void *configuration)
{
    (void)function, (void)configuration;
    *size = 8;
    return driver_check();
}

DRIVER_API(cuTensorMapEncodeTiled)(void *map)
{
    enum { TENSOR_MAP_BYTES = 128 };
    memset(map, 0, TENSOR_MAP_BYTES);
    return driver_check();
}
