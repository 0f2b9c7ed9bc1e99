#include "error.h"

#include "stand_in.h"

static _Thread_local cudaError_t last_error;

struct description {
    cudaError_t code;
    const char *name;
    const char *text;
};

static const struct description DESCRIPTIONS[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {4, "cudaErrorCudartUnloading", "driver shutting down"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {52, "cudaErrorMissingConfiguration", "missing launch configuration"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {201, "cudaErrorDeviceUninitialized", "invalid device context"},
    {217, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {401, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {709, "cudaErrorContextIsDestroyed", "context is destroyed"},
    {712, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {800, "cudaErrorNotPermitted", "operation not permitted"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
};

static const struct description UNKNOWN = {999, "cudaErrorUnknown", "unknown error"};

static const struct description *describe(cudaError_t code)
{
    for (size_t i = 0; i < sizeof DESCRIPTIONS / sizeof *DESCRIPTIONS; i++)
        if (DESCRIPTIONS[i].code == code)
            return &DESCRIPTIONS[i];
    return &UNKNOWN;
}

cudaError_t remember(cudaError_t result)
{
    if (result != cudaSuccess)
        last_error = result;
    return result;
}

/* The runtime refuses functions that are not simulated, so that no caller mistakes a no-op for success. */
long stand_in_missing(const char *symbol)
{
    log_line(LOG_UNSUPPORTED, "%s is not simulated", symbol);
    return remember(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaGetLastError(void)
{
    const cudaError_t result = last_error;
    last_error = cudaSuccess;
    return result;
}

EXPORT cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

EXPORT const char *cudaGetErrorName(cudaError_t code)
{
    return describe(code)->name;
}

EXPORT const char *cudaGetErrorString(cudaError_t code)
{
    return describe(code)->text;
}
