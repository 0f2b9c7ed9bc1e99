/*
 * The part of the CUDA runtime ABI that the stand-in libraries implement.
 *
 * These are our own declarations of public ABI facts (names, argument order, numeric values, struct layouts); no vendor header
 * is needed or copied. Handles are opaque to the runtime, so all of them are `void *` here. CUDA_MAJOR is 12 or 13: the
 * runtime that the PyTorch wheel needs.
 */
#ifndef GPUSIM_RUNTIME_ABI_H
#define GPUSIM_RUNTIME_ABI_H

#include <stddef.h>
#include <stdint.h>

#if CUDA_MAJOR != 12 && CUDA_MAJOR != 13
#error "CUDA_MAJOR must be 12 or 13"
#endif

/* The runtime version that is reported: 1000 * major + 10 * minor. */
#define RUNTIME_VERSION (CUDA_MAJOR == 12 ? 12080 : 13020)

/* The value for the runtime being built, where the two majors differ. */
#if CUDA_MAJOR == 12
#define CUDA_12_OR_13(value_12, value_13) (value_12)
#else
#define CUDA_12_OR_13(value_12, value_13) (value_13)
#endif

/* Driver and runtime use the same error numbers, so a driver result is passed on unchanged. */
typedef int cudaError_t;
enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInsufficientDriver = 35,
    cudaErrorMissingConfiguration = 52,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotSupported = 801,
};

typedef uint64_t device_address;
typedef struct { unsigned x, y, z; } dim3;
typedef struct { uint8_t bytes[64]; } ipc_handle; /* passed by value, on the stack */

/* cudaMemoryType */
enum { MEMORY_UNREGISTERED = 0, MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_MANAGED = 3 };

/* cudaPointerAttributes: CUDA 13 appended eight reserved words. */
typedef struct {
    int type;
    int device;
    void *device_pointer;
    void *host_pointer;
#if CUDA_MAJOR >= 13
    long reserved[8];
#endif
} pointer_attributes;
_Static_assert(sizeof(pointer_attributes) == CUDA_12_OR_13(24, 88), "cudaPointerAttributes");

/* cudaFuncAttributes */
typedef struct {
    size_t shared_bytes;
    size_t constant_bytes;
    size_t local_bytes;
    int max_threads_per_block;
    int registers;
    int ptx_version;
    int binary_version;
    int cache_mode;
    int max_dynamic_shared_bytes;
    int preferred_shared_carveout;
    int cluster_and_reserved[23];
} function_attributes;
_Static_assert(sizeof(function_attributes) == 144, "cudaFuncAttributes");
_Static_assert(offsetof(function_attributes, max_dynamic_shared_bytes) == 44, "cudaFuncAttributes");

/* cudaLaunchConfig_t */
typedef struct {
    dim3 grid;
    dim3 block;
    size_t dynamic_shared_bytes;
    void *stream;
    void *attributes;
    unsigned attribute_count;
} launch_configuration;
_Static_assert(sizeof(launch_configuration) == 56, "cudaLaunchConfig_t");

/* CUlaunchConfig: the driver's form of the same configuration. */
typedef struct {
    dim3 grid;
    dim3 block;
    unsigned dynamic_shared_bytes;
    void *stream;
    void *attributes;
    unsigned attribute_count;
} driver_launch_configuration;
_Static_assert(offsetof(driver_launch_configuration, stream) == 32, "CUlaunchConfig");
_Static_assert(sizeof(driver_launch_configuration) == 56, "CUlaunchConfig");

/* CUDA_MEMCPY2D: the driver's description of a copy of rows. */
typedef struct {
    size_t x_bytes, y;
    int memory_type;
    const void *host;
    device_address device;
    void *array;
    size_t pitch_bytes;
} copy_2d_side;
typedef struct {
    copy_2d_side source, destination;
    size_t width_bytes, height;
} copy_2d;
_Static_assert(sizeof(copy_2d) == 128, "CUDA_MEMCPY2D");
enum { DRIVER_MEMORY_HOST = 1, DRIVER_MEMORY_DEVICE = 2, DRIVER_MEMORY_UNIFIED = 4 };

/* CUpointer_attribute */
enum {
    POINTER_MEMORY_TYPE = 2,
    POINTER_DEVICE_POINTER = 3,
    POINTER_HOST_POINTER = 4,
    POINTER_IS_MANAGED = 8,
    POINTER_DEVICE_ORDINAL = 9,
};
/* The driver's ordinal for an unknown address. */
enum { NO_DEVICE = -2 };

/* CUfunction_attribute */
enum {
    FUNCTION_MAX_THREADS_PER_BLOCK = 0,
    FUNCTION_SHARED_BYTES = 1,
    FUNCTION_CONSTANT_BYTES = 2,
    FUNCTION_LOCAL_BYTES = 3,
    FUNCTION_REGISTERS = 4,
    FUNCTION_PTX_VERSION = 5,
    FUNCTION_BINARY_VERSION = 6,
    FUNCTION_MAX_DYNAMIC_SHARED_BYTES = 8,
};

typedef void (*stream_callback)(void *stream, int status, void *argument);
typedef void (*host_function)(void *argument);

#endif
