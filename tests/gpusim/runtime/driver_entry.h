/* Access to the driver: libcuda.so.1, with every function looked up through cuGetProcAddress_v2. */
#ifndef GPUSIM_DRIVER_ENTRY_H
#define GPUSIM_DRIVER_ENTRY_H

#include "runtime_abi.h"

/*
 * CALL(name, version, arguments): the driver function `name` of CUDA `version`, which selects the revision (cuMemAlloc of
 * 3020 is the symbol cuMemAlloc_v2). One revision can differ between the runtimes of CUDA 12 and 13, as in the real ones.
 */
#define DRIVER_CALLS(CALL)                                                                                             \
    CALL(cuInit, 2000, (unsigned flags))                                                                               \
    CALL(cuDriverGetVersion, 2020, (int *version))                                                                     \
    CALL(cuDeviceGetCount, 2000, (int *count))                                                                         \
    CALL(cuDeviceGet, 2000, (int *device, int ordinal))                                                                \
    CALL(cuDeviceGetName, 2000, (char *name, int bytes, int device))                                                   \
    CALL(cuDeviceTotalMem, 3020, (size_t *bytes, int device))                                                          \
    CALL(cuDeviceGetUuid, CUDA_12_OR_13(9020, 11040), (void *uuid, int device))                                        \
    CALL(cuDeviceGetAttribute, 2000, (int *value, int attribute, int device))                                          \
    CALL(cuDeviceGetPCIBusId, 4010, (char *text, int bytes, int device))                                               \
    CALL(cuDeviceCanAccessPeer, 4000, (int *can, int device, int peer))                                                \
    CALL(cuDeviceGetGraphMemAttribute, 11040, (int device, int attribute, void *value))                                \
    CALL(cuDeviceSetGraphMemAttribute, 11040, (int device, int attribute, void *value))                                \
    CALL(cuDevicePrimaryCtxRetain, 7000, (void **context, int device))                                                 \
    CALL(cuCtxSetCurrent, 4000, (void *context))                                                                       \
    CALL(cuCtxGetCurrent, 4000, (void **context))                                                                      \
    CALL(cuCtxSynchronize, 2000, (void))                                                                               \
    CALL(cuCtxGetStreamPriorityRange, 5050, (int *least, int *greatest))                                               \
    CALL(cuCtxEnablePeerAccess, 4000, (void *context, unsigned flags))                                                 \
    CALL(cuMemGetInfo, 3020, (size_t *free_bytes, size_t *total_bytes))                                                \
    CALL(cuMemAlloc, 3020, (device_address *address, size_t bytes))                                                    \
    CALL(cuMemFree, 3020, (device_address address))                                                                    \
    CALL(cuMemAllocManaged, 6000, (device_address *address, size_t bytes, unsigned flags))                             \
    CALL(cuMemHostAlloc, 2020, (void **address, size_t bytes, unsigned flags))                                         \
    CALL(cuMemFreeHost, 2000, (void *address))                                                                         \
    CALL(cuMemHostRegister, 6050, (void *address, size_t bytes, unsigned flags))                                       \
    CALL(cuMemHostUnregister, 4000, (void *address))                                                                   \
    CALL(cuPointerGetAttributes, 7000, (unsigned count, int *attributes, void **values, device_address address))       \
    CALL(cuIpcGetMemHandle, 4010, (ipc_handle *handle, device_address address))                                        \
    CALL(cuIpcOpenMemHandle, 11000, (device_address *address, ipc_handle handle, unsigned flags))                      \
    CALL(cuIpcCloseMemHandle, 4010, (device_address address))                                                          \
    CALL(cuIpcGetEventHandle, 4010, (ipc_handle *handle, void *event))                                                 \
    CALL(cuIpcOpenEventHandle, 4010, (void **event, ipc_handle handle))                                                \
    CALL(cuMemcpy, 4000, (device_address destination, device_address source, size_t bytes))                            \
    CALL(cuMemcpyAsync, 4000, (device_address destination, device_address source, size_t bytes, void *stream))         \
    CALL(cuMemcpy2DAsync, 3020, (const copy_2d *rows, void *stream))                                                   \
    CALL(cuMemsetD8, 3020, (device_address address, unsigned char value, size_t bytes))                                \
    CALL(cuMemsetD8Async, 3020, (device_address address, unsigned char value, size_t bytes, void *stream))             \
    CALL(cuMemAllocAsync, 11020, (device_address *address, size_t bytes, void *stream))                                \
    CALL(cuMemFreeAsync, 11020, (device_address address, void *stream))                                                \
    CALL(cuDeviceGetDefaultMemPool, 11020, (void **pool, int device))                                                  \
    CALL(cuMemPoolGetAttribute, 11020, (void *pool, int attribute, void *value))                                       \
    CALL(cuMemPoolSetAttribute, 11020, (void *pool, int attribute, void *value))                                       \
    CALL(cuMemPoolSetAccess, 11020, (void *pool, const void *descriptions, size_t count))                              \
    CALL(cuMemPoolTrimTo, 11020, (void *pool, size_t keep_bytes))                                                      \
    CALL(cuStreamCreateWithPriority, 5050, (void **stream, unsigned flags, int priority))                              \
    CALL(cuStreamCreate, 2000, (void **stream, unsigned flags))                                                        \
    CALL(cuStreamDestroy, 4000, (void *stream))                                                                        \
    CALL(cuStreamQuery, 2000, (void *stream))                                                                          \
    CALL(cuStreamSynchronize, 2000, (void *stream))                                                                    \
    CALL(cuStreamWaitEvent, 3020, (void *stream, void *event, unsigned flags))                                         \
    CALL(cuStreamGetPriority, 5050, (void *stream, int *priority))                                                     \
    CALL(cuStreamAddCallback, 5000, (void *stream, stream_callback callback, void *argument, unsigned flags))          \
    CALL(cuLaunchHostFunc, 10000, (void *stream, host_function function, void *argument))                              \
    CALL(cuStreamIsCapturing, 10000, (void *stream, int *status))                                                      \
    CALL(cuStreamGetCaptureInfo, 11030,                                                                                \
         (void *stream, int *status, uint64_t *id, void **graph, const void ***nodes, size_t *count))                  \
    CALL(cuStreamBeginCapture, 10010, (void *stream, int mode))                                                        \
    CALL(cuStreamEndCapture, 10000, (void *stream, void **graph))                                                      \
    CALL(cuThreadExchangeStreamCaptureMode, 10010, (int *mode))                                                        \
    CALL(cuGraphInstantiateWithFlags, 11040, (void **executable, void *graph, unsigned long long flags))               \
    CALL(cuGraphLaunch, 10000, (void *executable, void *stream))                                                       \
    CALL(cuGraphDestroy, 10000, (void *graph))                                                                         \
    CALL(cuGraphExecDestroy, 10000, (void *executable))                                                                \
    CALL(cuGraphGetNodes, 10000, (void *graph, void **nodes, size_t *count))                                           \
    CALL(cuEventCreate, 2000, (void **event, unsigned flags))                                                          \
    CALL(cuEventRecord, 2000, (void *event, void *stream))                                                             \
    CALL(cuEventRecordWithFlags, 11010, (void *event, void *stream, unsigned flags))                                   \
    CALL(cuEventQuery, 2000, (void *event))                                                                            \
    CALL(cuEventSynchronize, 2000, (void *event))                                                                      \
    CALL(cuEventDestroy, 4000, (void *event))                                                                          \
    CALL(cuEventElapsedTime, 2000, (float *milliseconds, void *start, void *end))                                      \
    CALL(cuLibraryLoadData, 12000,                                                                                     \
         (void **library, const void *image, int *jit, void **jit_values, unsigned jit_count, int *load,               \
          void **load_values, unsigned load_count))                                                                    \
    CALL(cuLibraryGetKernel, 12000, (void **kernel, void *library, const char *name))                                  \
    CALL(cuLaunchKernel, 4000,                                                                                         \
         (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,       \
          unsigned block_z, unsigned shared_bytes, void *stream, void **arguments, void **extra))                      \
    CALL(cuLaunchKernelEx, 11060,                                                                                      \
         (const driver_launch_configuration *configuration, void *function, void **arguments, void **extra))           \
    CALL(cuLaunchCooperativeKernel, 9000,                                                                              \
         (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,       \
          unsigned block_z, unsigned shared_bytes, void *stream, void **arguments))                                    \
    CALL(cuFuncGetAttribute, 2020, (int *value, int attribute, void *function))                                        \
    CALL(cuFuncSetAttribute, 9000, (void *function, int attribute, int value))                                         \
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000,                                                   \
         (int *blocks, void *function, int block_threads, size_t shared_bytes, unsigned flags))

/* One pointer per driver function, each named as the function. */
struct driver {
#define FIELD(name, version, arguments) int(*name) arguments;
    DRIVER_CALLS(FIELD)
#undef FIELD
};

/* Valid once start_driver() has returned cudaSuccess. A function that the driver lacks returns cudaErrorNotSupported. */
extern struct driver driver;

/* Loads and initialises the driver once per process, and always returns that result. */
cudaError_t start_driver(void);

/*
 * The driver's look-up function. On failure `*function` is NULL and `*status` (CUdriverProcAddressQueryResult) has the reason.
 * Call start_driver() first.
 */
cudaError_t find_driver_function(const char *name, int version, uint64_t flags, void **function, int *status);

/* Number of the driver's devices; 0 before start_driver(). */
int device_count(void);

#endif
