#include "driver_entry.h"

#include "error.h"
#include "stand_in.h"

#include <dlfcn.h>
#include <pthread.h>

typedef int (*lookup_function)(const char *name, void **function, int version, uint64_t flags, int *status);

struct driver driver;

static pthread_once_t started = PTHREAD_ONCE_INIT;
static cudaError_t start_result;
static lookup_function lookup;
static int devices;

/* Replaces a function that the driver lacks; ignores its arguments. */
static int lacking(void)
{
    return cudaErrorNotSupported;
}

static void resolve(const char *name, int version, void **slot)
{
    int status;
    if (lookup(name, slot, version, 0, &status) == cudaSuccess && *slot)
        return;
    log_line(LOG_UNSUPPORTED, "the driver lacks %s of CUDA %d", name, version);
    *slot = (void *)lacking;
}

/* The real runtime queries each device in this order at start. */
static cudaError_t greet_devices(void)
{
    cudaError_t result = driver.cuDeviceGetCount(&devices);
    for (int ordinal = 0; result == cudaSuccess && ordinal < devices; ordinal++) {
        int device;
        char name[256];
        size_t total_bytes;
        uint8_t uuid[16];
        result = driver.cuDeviceGet(&device, ordinal);
        if (result == cudaSuccess)
            result = driver.cuDeviceGetName(name, sizeof name, device);
        if (result == cudaSuccess)
            result = driver.cuDeviceTotalMem(&total_bytes, device);
        if (result == cudaSuccess)
            result = driver.cuDeviceGetUuid(uuid, device);
    }
    if (result == cudaSuccess && devices == 0)
        return cudaErrorNoDevice;
    return result;
}

static cudaError_t start(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return cudaErrorInsufficientDriver;
    lookup = (lookup_function)dlsym(library, "cuGetProcAddress_v2");
    if (!lookup)
        return cudaErrorInsufficientDriver;
#define RESOLVE(name, version, arguments) resolve(#name, version, (void **)&driver.name);
    DRIVER_CALLS(RESOLVE)
#undef RESOLVE
    int driver_version = 0;
    const cudaError_t result = driver.cuDriverGetVersion(&driver_version);
    if (result != cudaSuccess)
        return result;
    if (driver_version / 1000 < CUDA_MAJOR)
        return cudaErrorInsufficientDriver;
    const cudaError_t initialised = driver.cuInit(0);
    return initialised == cudaSuccess ? greet_devices() : initialised;
}

static void start_once(void)
{
    start_result = start();
}

cudaError_t start_driver(void)
{
    pthread_once(&started, start_once);
    return start_result;
}

int device_count(void)
{
    return devices;
}

cudaError_t find_driver_function(const char *name, int version, uint64_t flags, void **function, int *status)
{
    return lookup(name, function, version, flags, status);
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                    unsigned long long flags, int *status)
{
    const cudaError_t result = start_driver();
    if (result != cudaSuccess)
        return remember(result);
    int outcome;
    *function = NULL;
    /* A name unknown to the driver is not an error of this call: the caller reads `status`. */
    find_driver_function(name, (int)version, flags, function, &outcome);
    if (status)
        *status = outcome;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status)
{
    return cudaGetDriverEntryPointByVersion(name, function, RUNTIME_VERSION, flags, status);
}

EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
    return remember(start_driver() ?: driver.cuDriverGetVersion(version));
}

EXPORT cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = RUNTIME_VERSION;
    return cudaSuccess;
}
