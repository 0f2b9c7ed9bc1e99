/* A driver library that any user could write: it allocates nothing but returns success. A function that returns a handle or an address returns a new one
   from each call. Compiled with -fno-ipa-icf: every function has its own code, as in a real driver. */

#include <stdint.h>
#include <unistd.h>

#define API __attribute__((visibility("default"), noinline))
#define GIVES(name) API int name(uint64_t *given) { *given = __atomic_add_fetch(&next, 0x1000, __ATOMIC_RELAXED); return 0; }
#define TAKES(name) API int name(uint64_t taken) { __asm__ volatile("" ::"r"(taken)); return 0; }

static uint64_t next = 0x700000000000ull;

GIVES(cuMemAllocManaged)
GIVES(cuMemAllocHost_v2)
GIVES(cuMemHostAlloc)
GIVES(cuMemAllocAsync)
GIVES(cuMemAllocAsync_ptsz)
GIVES(cuMemAllocFromPoolAsync)
GIVES(cuMemAllocFromPoolAsync_ptsz)
GIVES(cuMemCreate)
GIVES(cuMemImportFromShareableHandle)
GIVES(cuIpcOpenMemHandle_v2)
GIVES(cuArrayCreate_v2)
GIVES(cuArray3DCreate_v2)
GIVES(cuMipmappedArrayCreate)
GIVES(cuDevicePrimaryCtxRetain)
GIVES(cuCtxCreate_v2)
GIVES(cuCtxCreate_v3)
GIVES(cuMemPoolCreate)
GIVES(cuMemPoolImportPointer)
GIVES(cuMemAddressReserve)
GIVES(cuMulticastCreate)
GIVES(cuImportExternalMemory)
GIVES(cuExternalMemoryGetMappedBuffer)
GIVES(cuGraphAddMemAllocNode)
GIVES(cuGraphInstantiate)
GIVES(cuGraphInstantiateWithFlags)
GIVES(cuGreenCtxCreate)
GIVES(cuStreamCreate)
GIVES(cuStreamCreateWithPriority)
GIVES(cuModuleLoad)
GIVES(cuModuleLoadData)
GIVES(cuModuleLoadFatBinary)
GIVES(cuLibraryLoadData)
GIVES(cuLibraryLoadFromFile)
TAKES(cuInit)
TAKES(cuMemFree_v2)
TAKES(cuMemHostRegister_v2)
TAKES(cuMemMap)
TAKES(cuCtxSetCurrent)

/* More than any device has is refused: CUDA_ERROR_OUT_OF_MEMORY. */
API int cuMemAlloc_v2(uint64_t *given, uint64_t bytes) {
    if (bytes >> 40) return 2;
    *given = __atomic_add_fetch(&next, 0x1000, __ATOMIC_RELAXED);
    return 0;
}

API int cuMemAllocPitch_v2(uint64_t *given, uint64_t *pitch) {
    *given = __atomic_add_fetch(&next, 0x1000, __ATOMIC_RELAXED);
    *pitch = 512;
    return 0;
}

/* A call that does not return. */
API int cuMemFreeAsync(uint64_t taken) {
    __asm__ volatile("" ::"r"(taken));
    for (;;) pause();
}
