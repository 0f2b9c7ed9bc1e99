#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>

struct driver_functions driver;

typedef CUresult (*look_up)(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *);

static bool find(look_up get, const char *name, int version, bool per_thread, void **function)
{
    CUdriverProcAddressQueryResult status;
    uint64_t flags = per_thread ? PROC_ADDRESS_PER_THREAD_STREAM : 0;
    if (get(name, function, version, flags, &status) == CUDA_SUCCESS)
        return true;
    fprintf(stderr, "libcuda.so.1 has no %s for CUDA %d\n", name, version);
    return false;
}

bool driver_load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return false;
    }
    look_up get;
    *(void **)&get = dlsym(library, "cuGetProcAddress_v2");
    if (!get) {
        fprintf(stderr, "libcuda.so.1 has no cuGetProcAddress_v2\n");
        return false;
    }
    bool complete = true;
#define FIND(field, name, version, per_thread, parameters) \
    complete &= find(get, name, version, per_thread, (void **)&driver.field);
    DRIVER_FUNCTIONS(FIND)
#undef FIND
    return complete;
}
