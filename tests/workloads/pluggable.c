/*
 * An allocator for torch.cuda.memory.CUDAPluggableAllocator that only calls the CUDA runtime of the process.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <sys/types.h>

typedef int (*allocating)(void **address, size_t bytes);
typedef int (*freeing)(void *address);

void *take(ssize_t bytes, int device, void *stream)
{
    void *address = NULL;
    allocating allocate = (allocating)dlsym(RTLD_DEFAULT, "cudaMalloc");
    (void)device;
    (void)stream;
    if (allocate)
        allocate(&address, (size_t)bytes);
    return address;
}

void give_back(void *address, ssize_t bytes, int device, void *stream)
{
    freeing release = (freeing)dlsym(RTLD_DEFAULT, "cudaFree");
    (void)bytes;
    (void)device;
    (void)stream;
    if (release)
        release(address);
}
