#include "context.h"

#include "stand_in.h"

#include <pthread.h>
#include <stdbool.h>

enum { MAX_DEVICES = 64 };

/* Retained once per device and process, and kept until the process ends, as the real runtime does. */
static _Atomic(void *) primary_contexts[MAX_DEVICES];
static pthread_mutex_t primary_contexts_lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local int chosen_device;

static bool is_device(int device)
{
    return device >= 0 && device < device_count() && device < MAX_DEVICES;
}

static cudaError_t primary_context(int device, void **context)
{
    if (!is_device(device))
        return cudaErrorInvalidDevice;
    cudaError_t result = cudaSuccess;
    pthread_mutex_lock(&primary_contexts_lock);
    *context = primary_contexts[device];
    if (!*context)
        result = driver.cuDevicePrimaryCtxRetain(context, device);
    if (result == cudaSuccess)
        primary_contexts[device] = *context;
    pthread_mutex_unlock(&primary_contexts_lock);
    return result;
}

static cudaError_t make_current(int device)
{
    void *wanted, *current = NULL;
    const cudaError_t result = primary_context(device, &wanted);
    if (result != cudaSuccess)
        return result;
    driver.cuCtxGetCurrent(&current);
    return current == wanted ? cudaSuccess : driver.cuCtxSetCurrent(wanted);
}

cudaError_t enter_context(void)
{
    const cudaError_t result = start_driver();
    if (result != cudaSuccess)
        return result;
    void *current = NULL;
    driver.cuCtxGetCurrent(&current);
    return current ? cudaSuccess : make_current(chosen_device);
}

/* The device of the current primary context, which may have been changed by a direct call of the driver. */
static int current_device(void)
{
    void *current = NULL;
    driver.cuCtxGetCurrent(&current);
    for (int device = 0; current && device < device_count() && device < MAX_DEVICES; device++)
        if (primary_contexts[device] == current)
            return device;
    return chosen_device;
}

EXPORT cudaError_t cudaSetDevice(int device)
{
    const cudaError_t result = start_driver() ?: make_current(device);
    if (result == cudaSuccess)
        chosen_device = device;
    return remember(result);
}

EXPORT cudaError_t cudaGetDevice(int *device)
{
    const cudaError_t result = start_driver();
    if (result == cudaSuccess)
        *device = current_device();
    return remember(result);
}

EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    void *context;
    return remember(enter_context() ?: primary_context(peer, &context) ?: driver.cuCtxEnablePeerAccess(context, flags));
}
