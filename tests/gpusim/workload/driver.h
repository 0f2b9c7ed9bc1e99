/* The driver as this program calls it: loaded as a runtime does, by dlopen and cuGetProcAddress_v2. */
#ifndef WORKLOAD_DRIVER_H
#define WORKLOAD_DRIVER_H

#include <stdbool.h>

#include "cuda_abi.h"

/*
 * Every driver function that a command uses: field, name for cuGetProcAddress, requested CUDA version, whether the
 * per-thread-stream variant is used, parameters.
 */
#define DRIVER_FUNCTIONS(X) \
    X(init, "cuInit", 2000, false, (unsigned)) \
    X(device_count, "cuDeviceGetCount", 2000, false, (int *)) \
    X(device_uuid, "cuDeviceGetUuid", 9020, false, (CUuuid *, CUdevice)) \
    X(device_uuid_v2, "cuDeviceGetUuid", 11040, false, (CUuuid *, CUdevice)) \
    X(primary_retain, "cuDevicePrimaryCtxRetain", 7000, false, (CUcontext *, CUdevice)) \
    X(primary_release, "cuDevicePrimaryCtxRelease", 11000, false, (CUdevice)) \
    X(primary_reset, "cuDevicePrimaryCtxReset", 11000, false, (CUdevice)) \
    X(context_create_v2, "cuCtxCreate", 3020, false, (CUcontext *, unsigned, CUdevice)) \
    X(context_create_v3, "cuCtxCreate", 11040, false, (CUcontext *, void *, int, unsigned, CUdevice)) \
    X(context_create_v4, "cuCtxCreate", 12050, false, (CUcontext *, void *, unsigned, CUdevice)) \
    X(context_destroy, "cuCtxDestroy", 4000, false, (CUcontext)) \
    X(context_set, "cuCtxSetCurrent", 4000, false, (CUcontext)) \
    X(context_get, "cuCtxGetCurrent", 4000, false, (CUcontext *)) \
    X(context_push, "cuCtxPushCurrent", 4000, false, (CUcontext)) \
    X(context_pop, "cuCtxPopCurrent", 4000, false, (CUcontext *)) \
    X(context_device, "cuCtxGetDevice", 2000, false, (CUdevice *)) \
    X(context_synchronize, "cuCtxSynchronize", 2000, false, (void)) \
    X(device_resource, "cuDeviceGetDevResource", 12040, false, (CUdevice, CUdevResource *, int)) \
    X(resource_list, "cuDevResourceGenerateDesc", 12040, false, (CUdevResourceDesc *, CUdevResource *, unsigned)) \
    X(green_create, "cuGreenCtxCreate", 12040, false, (CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned)) \
    X(green_destroy, "cuGreenCtxDestroy", 12040, false, (CUgreenCtx)) \
    X(green_context, "cuCtxFromGreenCtx", 12040, false, (CUcontext *, CUgreenCtx)) \
    X(memory_info, "cuMemGetInfo", 3020, false, (size_t *, size_t *)) \
    X(address_range, "cuMemGetAddressRange", 3020, false, (CUdeviceptr *, size_t *, CUdeviceptr)) \
    X(allocate, "cuMemAlloc", 3020, false, (CUdeviceptr *, size_t)) \
    X(allocate_pitched, "cuMemAllocPitch", 3020, false, (CUdeviceptr *, size_t *, size_t, size_t, unsigned)) \
    X(allocate_managed, "cuMemAllocManaged", 6000, false, (CUdeviceptr *, size_t, unsigned)) \
    X(free, "cuMemFree", 3020, false, (CUdeviceptr)) \
    X(host_allocate, "cuMemHostAlloc", 2020, false, (void **, size_t, unsigned)) \
    X(host_allocate_plain, "cuMemAllocHost", 3020, false, (void **, size_t)) \
    X(host_free, "cuMemFreeHost", 2000, false, (void *)) \
    X(host_register, "cuMemHostRegister", 6050, false, (void *, size_t, unsigned)) \
    X(host_unregister, "cuMemHostUnregister", 4000, false, (void *)) \
    X(allocate_async, "cuMemAllocAsync", 11020, false, (CUdeviceptr *, size_t, CUstream)) \
    X(allocate_async_ptsz, "cuMemAllocAsync", 11020, true, (CUdeviceptr *, size_t, CUstream)) \
    X(allocate_from_pool, "cuMemAllocFromPoolAsync", 11020, false, (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) \
    X(allocate_from_pool_ptsz, "cuMemAllocFromPoolAsync", 11020, true, (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) \
    X(free_async, "cuMemFreeAsync", 11020, false, (CUdeviceptr, CUstream)) \
    X(free_async_ptsz, "cuMemFreeAsync", 11020, true, (CUdeviceptr, CUstream)) \
    X(pool_create, "cuMemPoolCreate", 11020, false, (CUmemoryPool *, const CUmemPoolProps *)) \
    X(pool_destroy, "cuMemPoolDestroy", 11020, false, (CUmemoryPool)) \
    X(pool_trim, "cuMemPoolTrimTo", 11020, false, (CUmemoryPool, size_t)) \
    X(pool_set, "cuMemPoolSetAttribute", 11020, false, (CUmemoryPool, int, void *)) \
    X(pool_get, "cuMemPoolGetAttribute", 11020, false, (CUmemoryPool, int, void *)) \
    X(pool_default, "cuDeviceGetDefaultMemPool", 11020, false, (CUmemoryPool *, CUdevice)) \
    X(pool_current, "cuDeviceGetMemPool", 11020, false, (CUmemoryPool *, CUdevice)) \
    X(pool_use, "cuDeviceSetMemPool", 11020, false, (CUdevice, CUmemoryPool)) \
    X(stream_create, "cuStreamCreate", 2000, false, (CUstream *, unsigned)) \
    X(stream_destroy, "cuStreamDestroy", 4000, false, (CUstream)) \
    X(stream_synchronize, "cuStreamSynchronize", 2000, false, (CUstream)) \
    X(event_create, "cuEventCreate", 2000, false, (CUevent *, unsigned)) \
    X(event_destroy, "cuEventDestroy", 4000, false, (CUevent)) \
    X(event_synchronize, "cuEventSynchronize", 2000, false, (CUevent)) \
    X(address_reserve, "cuMemAddressReserve", 10020, false, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
    X(address_free, "cuMemAddressFree", 10020, false, (CUdeviceptr, size_t)) \
    X(physical_create, "cuMemCreate", 10020, false, (uint64_t *, size_t, const CUmemAllocationProp *, unsigned long long)) \
    X(physical_release, "cuMemRelease", 10020, false, (uint64_t)) \
    X(physical_retain, "cuMemRetainAllocationHandle", 11000, false, (uint64_t *, void *)) \
    X(map, "cuMemMap", 10020, false, (CUdeviceptr, size_t, size_t, uint64_t, unsigned long long)) \
    X(unmap, "cuMemUnmap", 10020, false, (CUdeviceptr, size_t)) \
    X(set_access, "cuMemSetAccess", 10020, false, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)) \
    X(handle_export, "cuMemExportToShareableHandle", 10020, false, (void *, uint64_t, int, unsigned long long)) \
    X(handle_import, "cuMemImportFromShareableHandle", 10020, false, (uint64_t *, void *, int)) \
    X(multicast_create, "cuMulticastCreate", 12010, false, (uint64_t *, const CUmulticastObjectProp *)) \
    X(multicast_bind, "cuMulticastBindMem", 13010, false, (uint64_t, CUdevice, size_t, uint64_t, size_t, size_t, unsigned long long)) \
    X(multicast_unbind, "cuMulticastUnbind", 12010, false, (uint64_t, CUdevice, size_t, size_t)) \
    X(array_create, "cuArrayCreate", 3020, false, (CUarray *, const CUDA_ARRAY_DESCRIPTOR *)) \
    X(array_create_3d, "cuArray3DCreate", 3020, false, (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *)) \
    X(array_destroy, "cuArrayDestroy", 2000, false, (CUarray)) \
    X(mipmap_create, "cuMipmappedArrayCreate", 5000, false, (CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned)) \
    X(mipmap_destroy, "cuMipmappedArrayDestroy", 5000, false, (CUmipmappedArray)) \
    X(ipc_get, "cuIpcGetMemHandle", 4010, false, (CUipcMemHandle *, CUdeviceptr)) \
    X(ipc_open, "cuIpcOpenMemHandle", 11000, false, (CUdeviceptr *, CUipcMemHandle, unsigned)) \
    X(ipc_close, "cuIpcCloseMemHandle", 4010, false, (CUdeviceptr)) \
    X(external_import, "cuImportExternalMemory", 10000, false, (CUexternalMemory *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *)) \
    X(external_map, "cuExternalMemoryGetMappedBuffer", 10000, false, (CUdeviceptr *, CUexternalMemory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *)) \
    X(capture_begin, "cuStreamBeginCapture", 10010, false, (CUstream, int)) \
    X(capture_end, "cuStreamEndCapture", 10000, false, (CUstream, CUgraph *)) \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", 11040, false, (CUgraphExec *, CUgraph, unsigned long long)) \
    X(graph_launch, "cuGraphLaunch", 10000, false, (CUgraphExec, CUstream)) \
    X(graph_destroy, "cuGraphDestroy", 10000, false, (CUgraph)) \
    X(graph_executable_destroy, "cuGraphExecDestroy", 10000, false, (CUgraphExec)) \
    X(graph_trim, "cuDeviceGraphMemTrim", 11040, false, (CUdevice)) \
    X(module_load, "cuModuleLoadData", 2000, false, (CUmodule *, const void *)) \
    X(module_function, "cuModuleGetFunction", 2000, false, (CUfunction *, CUmodule, const char *)) \
    X(launch, "cuLaunchKernel", 4000, false, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
    X(checkpoint, "cuCheckpointProcessCheckpoint", 12080, false, (int, void *)) \
    X(restore, "cuCheckpointProcessRestore", 12080, false, (int, void *))

struct driver_functions {
#define DECLARE(field, name, version, per_thread, parameters) CUresult (*field) parameters;
    DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE
};

extern struct driver_functions driver;

/* Loads libcuda.so.1 and looks up every function; prints the missing ones and returns false if there are any. */
bool driver_load(void);

#endif
