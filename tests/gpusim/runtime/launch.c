/* Launches and attributes of kernels. */
#include "context.h"
#include "kernel_registry.h"
#include "stand_in.h"

#include <string.h>

/* The configuration of `kernel<<<...>>>`, from its evaluation to the call of the kernel's host-side stub. */
struct call_configuration {
    dim3 grid, block;
    size_t shared_bytes;
    void *stream;
};

enum { MAX_NESTED_CALLS = 8 };
static _Thread_local struct call_configuration pushed[MAX_NESTED_CALLS];
static _Thread_local int pushed_count;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void *stream)
{
    if (pushed_count == MAX_NESTED_CALLS)
        return 1; /* the caller then skips the launch */
    pushed[pushed_count++] = (struct call_configuration){grid, block, shared_bytes, stream};
    return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream)
{
    if (pushed_count == 0)
        return remember(cudaErrorMissingConfiguration);
    const struct call_configuration *const top = &pushed[--pushed_count];
    *grid = top->grid;
    *block = top->block;
    *shared_bytes = top->shared_bytes;
    *(void **)stream = top->stream;
    return cudaSuccess;
}

/* CUDA 13's compiled host code looks the kernel up once and then launches by handle. */
EXPORT cudaError_t __cudaGetKernel(void **kernel, const void *stub)
{
    return remember(enter_context() ?: find_kernel(stub, kernel));
}

EXPORT cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                                      void *stream)
{
    return IN_CONTEXT(cuLaunchKernel(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared_bytes,
                                     stream, arguments, NULL));
}

EXPORT cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                                    void *stream)
{
    void *kernel;
    return __cudaGetKernel(&kernel, stub) ?: __cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

EXPORT cudaError_t cudaLaunchCooperativeKernel(const void *stub, dim3 grid, dim3 block, void **arguments,
                                               size_t shared_bytes, void *stream)
{
    void *kernel;
    return __cudaGetKernel(&kernel, stub) ?: IN_CONTEXT(
        cuLaunchCooperativeKernel(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared_bytes,
                                  stream, arguments));
}

EXPORT cudaError_t cudaLaunchKernelExC(const launch_configuration *configuration, const void *stub, void **arguments)
{
    const driver_launch_configuration wanted = {
        .grid = configuration->grid,
        .block = configuration->block,
        .dynamic_shared_bytes = (unsigned)configuration->dynamic_shared_bytes,
        .stream = configuration->stream,
        .attributes = configuration->attributes,
        .attribute_count = configuration->attribute_count,
    };
    void *kernel;
    return __cudaGetKernel(&kernel, stub) ?: IN_CONTEXT(cuLaunchKernelEx(&wanted, kernel, arguments, NULL));
}

static int kernel_number(void *kernel, int attribute)
{
    int value = 0;
    driver.cuFuncGetAttribute(&value, attribute, kernel);
    return value;
}

EXPORT cudaError_t cudaFuncGetAttributes(function_attributes *attributes, const void *stub)
{
    void *kernel;
    const cudaError_t result = __cudaGetKernel(&kernel, stub);
    if (result != cudaSuccess)
        return result;
    memset(attributes, 0, sizeof *attributes);
    attributes->shared_bytes = (size_t)kernel_number(kernel, FUNCTION_SHARED_BYTES);
    attributes->constant_bytes = (size_t)kernel_number(kernel, FUNCTION_CONSTANT_BYTES);
    attributes->local_bytes = (size_t)kernel_number(kernel, FUNCTION_LOCAL_BYTES);
    attributes->max_threads_per_block = kernel_number(kernel, FUNCTION_MAX_THREADS_PER_BLOCK);
    attributes->registers = kernel_number(kernel, FUNCTION_REGISTERS);
    attributes->ptx_version = kernel_number(kernel, FUNCTION_PTX_VERSION);
    attributes->binary_version = kernel_number(kernel, FUNCTION_BINARY_VERSION);
    attributes->max_dynamic_shared_bytes = kernel_number(kernel, FUNCTION_MAX_DYNAMIC_SHARED_BYTES);
    return cudaSuccess;
}

EXPORT cudaError_t cudaFuncSetAttribute(const void *stub, int attribute, int value)
{
    void *kernel;
    return __cudaGetKernel(&kernel, stub) ?: IN_CONTEXT(cuFuncSetAttribute(kernel, attribute, value));
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *stub,
                                                                          int block_threads, size_t shared_bytes,
                                                                          unsigned flags)
{
    void *kernel;
    return __cudaGetKernel(&kernel, stub) ?: IN_CONTEXT(
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, block_threads, shared_bytes, flags));
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *stub, int block_threads,
                                                                 size_t shared_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, stub, block_threads, shared_bytes, 0);
}
