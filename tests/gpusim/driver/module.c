/* Modules, libraries and kernels. No code runs, so a kernel is only a name. */
#include "module.h"

#include <stdlib.h>
#include <string.h>

#include "address_space.h"
#include "allocation.h"
#include "context.h"
#include "driver.h"

#define GLOBAL_BYTES 65536ull

struct global {
    char *name;
    CUdeviceptr address;
    struct global *next;
};

struct module {
    struct global *globals;
    struct kernel *kernels;
};

static CUresult load(struct module **module)
{
    CUresult result = driver_check();
    if (result == CUDA_SUCCESS)
        *module = driver_record(sizeof **module);
    return result;
}

static char *copy_name(const char *name)
{
    char *copy = driver_record(strlen(name) + 1);
    return strcpy(copy, name);
}

static CUresult find_kernel(struct kernel **kernel_out, struct module *module, const char *name)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct kernel *kernel = module->kernels;
    while (kernel && strcmp(kernel->name, name) != 0)
        kernel = kernel->next;
    if (!kernel) {
        kernel = driver_record(sizeof *kernel);
        *kernel = (struct kernel){.module = module, .name = copy_name(name), .next = module->kernels};
        module->kernels = kernel;
    }
    *kernel_out = kernel;
    driver_leave();
    return CUDA_SUCCESS;
}

/*
 * The size of a variable is unknown without reading the image, so each gets the same generous range. It takes no device
 * memory: code and variables are part of the context overhead.
 */
static struct global *new_global(struct module *module, const char *name, int device)
{
    struct allocation variable = {
        .kind = ALLOCATION_MODULE_GLOBAL, .bytes = GLOBAL_BYTES, .block_bytes = GRANULE_BYTES, .device = device};
    variable.address = address_space_take(GRANULE_BYTES, GRANULE_BYTES);
    if (!variable.address)
        return NULL;
    allocation_insert(&variable);
    struct global *global = driver_record(sizeof *global);
    *global = (struct global){.name = copy_name(name), .address = variable.address, .next = module->globals};
    module->globals = global;
    return global;
}

static CUresult find_global(CUdeviceptr *address, size_t *bytes, struct module *module, const char *name)
{
    struct context *context;
    CUresult result = driver_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    struct global *global = module->globals;
    while (global && strcmp(global->name, name) != 0)
        global = global->next;
    if (!global)
        global = new_global(module, name, context->device);
    if (global && address)
        *address = global->address;
    if (bytes)
        *bytes = GLOBAL_BYTES;
    driver_leave();
    return global ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Kernel handles outlive their module, so that a stale handle is harmless. */
static CUresult unload(struct module *module)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    while (module->globals) {
        struct global *global = module->globals;
        module->globals = global->next;
        address_space_give(global->address, GRANULE_BYTES);
        allocation_remove(allocation_at(global->address));
        free(global->name);
        free(global);
    }
    driver_leave();
    return CUDA_SUCCESS;
}

DRIVER_API(cuModuleLoad)(CUmodule *module, const char *path)
{
    (void)path;
    return load(module);
}

DRIVER_API(cuModuleLoadData)(CUmodule *module, const void *image)
{
    (void)image;
    return load(module);
}

DRIVER_API(cuModuleLoadDataEx)(CUmodule *module, const void *image, unsigned count, int *options, void **values)
{
    (void)image, (void)count, (void)options, (void)values;
    return load(module);
}

DRIVER_API(cuModuleLoadFatBinary)(CUmodule *module, const void *image)
{
    (void)image;
    return load(module);
}

DRIVER_API(cuModuleUnload)(CUmodule module)
{
    return unload(module);
}

DRIVER_API(cuModuleGetLoadingMode)(int *mode)
{
    enum { LAZY = 2 };
    *mode = LAZY;
    return driver_check();
}

DRIVER_API(cuModuleGetFunction)(CUfunction *function, CUmodule module, const char *name)
{
    return find_kernel(function, module, name);
}

DRIVER_API(cuModuleGetGlobal_v2)(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name)
{
    return find_global(address, bytes, module, name);
}

DRIVER_API(cuLibraryLoadData)(
    CUlibrary *library, const void *code, int *options, void **values, unsigned count, int *library_options,
    void **library_values, unsigned library_count)
{
    (void)code, (void)options, (void)values, (void)count;
    (void)library_options, (void)library_values, (void)library_count;
    return load(library);
}

DRIVER_API(cuLibraryLoadFromFile)(
    CUlibrary *library, const char *path, int *options, void **values, unsigned count, int *library_options,
    void **library_values, unsigned library_count)
{
    (void)path, (void)options, (void)values, (void)count;
    (void)library_options, (void)library_values, (void)library_count;
    return load(library);
}

DRIVER_API(cuLibraryUnload)(CUlibrary library)
{
    return unload(library);
}

DRIVER_API(cuLibraryGetKernel)(CUkernel *kernel, CUlibrary library, const char *name)
{
    return find_kernel(kernel, library, name);
}

DRIVER_API(cuLibraryGetModule)(CUmodule *module, CUlibrary library)
{
    *module = library;
    return driver_check();
}

DRIVER_API(cuLibraryGetGlobal)(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name)
{
    return find_global(address, bytes, library, name);
}
