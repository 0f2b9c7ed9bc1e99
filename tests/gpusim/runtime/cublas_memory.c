/*
 * Memory of a cuBLAS handle, allocated as cuBLAS does: by its own copy of the runtime, linked into the same file, so that the
 * calls of the driver return into libcublas. Measured on an H100 with CUDA 13.0.
 */
#include "cublas_memory.h"

#include "stand_in.h"

#include <dlfcn.h>
#include <pthread.h>

enum { PIECES = 3 };
static const size_t PIECE_BYTES[PIECES] = {1024, 131072, 67108864};

static pthread_once_t started = PTHREAD_ONCE_INIT;
static int (*get_device)(int *device);
static int (*retain)(void **context, int device);
static int (*allocate)(unsigned long long *address, size_t bytes);
static int (*give_back)(unsigned long long address);

static void start(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return;
    get_device = dlsym(library, "cuCtxGetDevice");
    retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    allocate = dlsym(library, "cuMemAlloc_v2");
    give_back = dlsym(library, "cuMemFree_v2");
    /* cuBLAS and cuBLASLt each have a runtime; cudaFree(NULL) initialises the first of them. */
    int device;
    void *context;
    if (get_device(&device) == 0) {
        retain(&context, device);
        give_back(0);
        retain(&context, device);
    }
}

bool cublas_memory_take(struct cublas_memory *memory)
{
    if (settings_number("GPUSIM_CUBLAS_MEMORY", 0) == 0)
        return true;
    static _Atomic int handles;
    pthread_once(&started, start);
    if (!allocate)
        return false;
    if (handles++ > 0)
        give_back(0);
    for (int piece = 0; piece < PIECES; piece++)
        if (allocate(&memory->addresses[piece], PIECE_BYTES[piece]) != 0)
            return false;
    return true;
}

void cublas_memory_give(struct cublas_memory *memory)
{
    for (int piece = 0; piece < PIECES; piece++)
        if (memory->addresses[piece])
            give_back(memory->addresses[piece]);
}
