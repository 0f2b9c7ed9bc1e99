#include "kernel_registry.h"

#include "driver_entry.h"
#include "stand_in.h"

#include <pthread.h>
#include <stdlib.h>

/* Device code of all kernels of one translation unit, as embedded by the compiler. */
struct fat_binary {
    const void *image;
    void *library; /* NULL until one of its kernels is used */
};

struct kernel {
    const void *stub; /* NULL: the slot is empty */
    const char *name;
    struct fat_binary *code;
    void *handle; /* NULL until used */
};

/* Open addressing, at most half full. PyTorch registers some hundred thousand kernels at load. */
static struct kernel *slots;
static size_t slot_count, kernel_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { FIRST_SLOT_COUNT = 1 << 16 };

static struct kernel *slot_of(const void *stub)
{
    const size_t hash = ((uintptr_t)stub >> 4) * 0x9E3779B97F4A7C15ull;
    size_t at = hash & (slot_count - 1);
    while (slots[at].stub && slots[at].stub != stub)
        at = (at + 1) & (slot_count - 1);
    return &slots[at];
}

static void grow(void)
{
    struct kernel *const old_slots = slots;
    const size_t old_count = slot_count;
    slot_count = old_count ? 2 * old_count : FIRST_SLOT_COUNT;
    slots = calloc(slot_count, sizeof *slots);
    if (!slots)
        abort();
    for (size_t i = 0; i < old_count; i++)
        if (old_slots[i].stub)
            *slot_of(old_slots[i].stub) = old_slots[i];
    free(old_slots);
}

static void add_kernel(const void *stub, const char *name, struct fat_binary *code)
{
    pthread_mutex_lock(&lock);
    if (2 * kernel_count >= slot_count)
        grow();
    struct kernel *const slot = slot_of(stub);
    if (!slot->stub)
        kernel_count++;
    *slot = (struct kernel){.stub = stub, .name = name, .code = code};
    pthread_mutex_unlock(&lock);
}

static cudaError_t load_kernel(struct kernel *kernel)
{
    cudaError_t result = cudaSuccess;
    if (!kernel->code->library)
        result = driver.cuLibraryLoadData(&kernel->code->library, kernel->code->image, NULL, NULL, 0, NULL, NULL, 0);
    if (result == cudaSuccess && !kernel->handle)
        result = driver.cuLibraryGetKernel(&kernel->handle, kernel->code->library, kernel->name);
    return result;
}

cudaError_t find_kernel(const void *stub, void **kernel)
{
    pthread_mutex_lock(&lock);
    struct kernel *const found = slot_count ? slot_of(stub) : NULL;
    cudaError_t result = cudaErrorInvalidDeviceFunction;
    if (found && found->stub) {
        result = load_kernel(found);
        *kernel = found->handle;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Compiled host code calls the functions below at load and unload; their names are fixed by that code. */

EXPORT void **__cudaRegisterFatBinary(void *image)
{
    struct fat_binary *const binary = calloc(1, sizeof *binary);
    if (!binary)
        abort();
    binary->image = image;
    return (void **)binary;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **binary)
{
    (void)binary;
}

/* Called at process exit: the kernels stay registered, for destructors that still launch some. */
EXPORT void __cudaUnregisterFatBinary(void **binary)
{
    (void)binary;
}

EXPORT char __cudaInitModule(void **binary)
{
    (void)binary;
    return 1;
}

EXPORT void __cudaRegisterFunction(void **binary, const char *stub, char *device_function, const char *name,
                                   int thread_limit, void *thread_id, void *block_id, void *block_dim, void *grid_dim,
                                   int *warp_size)
{
    (void)device_function;
    (void)thread_limit;
    (void)thread_id;
    (void)block_id;
    (void)block_dim;
    (void)grid_dim;
    (void)warp_size;
    add_kernel(stub, name, (struct fat_binary *)binary);
}

/* Kernels do nothing here, so no device variable is read. */
EXPORT void __cudaRegisterVar(void **binary, char *host, char *device, const char *name, int is_external, size_t bytes,
                              int is_constant, int is_global)
{
    (void)binary;
    (void)host;
    (void)device;
    (void)name;
    (void)is_external;
    (void)bytes;
    (void)is_constant;
    (void)is_global;
}
