/* cuDNN: the handle and the library's properties. Computations succeed and do nothing. */
#include "cudnn.h"

#include "stand_in.h"

#include <stdlib.h>

struct handle { void *stream; };

long stand_in_missing(const char *symbol)
{
    log_line(LOG_NO_OPERATION, "%s does nothing", symbol);
    return SUCCESS;
}

EXPORT status cudnnCreate(struct handle **handle)
{
    *handle = calloc(1, sizeof **handle);
    return *handle ? SUCCESS : ALLOCATION_FAILED;
}

EXPORT status cudnnDestroy(struct handle *handle)
{
    free(handle);
    return SUCCESS;
}

EXPORT status cudnnSetStream(struct handle *handle, void *stream)
{
    handle->stream = stream;
    return SUCCESS;
}

EXPORT status cudnnGetStream(struct handle *handle, void **stream)
{
    *stream = handle->stream;
    return SUCCESS;
}

/* PyTorch refuses a cuDNN older than its build version, so that version is the default. */
EXPORT size_t cudnnGetVersion(void)
{
    return (size_t)settings_number("GPUSIM_CUDNN_VERSION", CUDNN_VERSION);
}

EXPORT status cudnnGetProperty(int property, int *value)
{
    const int version = (int)cudnnGetVersion();
    const int parts[] = {version / 10000, version / 100 % 100, version % 100};
    *value = parts[property];
    return SUCCESS;
}

EXPORT size_t cudnnGetCudartVersion(void)
{
    return CUDA_MAJOR * 1000;
}

EXPORT const char *cudnnGetErrorString(status code)
{
    return code == SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_INTERNAL_ERROR";
}

EXPORT void cudnnGetLastErrorString(char *text, size_t bytes)
{
    if (bytes > 0)
        *text = '\0';
}

/* ---- batch normalisation and dropout: sizes of their extra memory ---- */

enum { DROPOUT_STATE_BYTES = 1 << 20 };

EXPORT status cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int operations, void *x,
                                                                       void *z, void *y, void *scale, void *activation,
                                                                       size_t *bytes)
{
    (void)handle, (void)mode, (void)operations, (void)x, (void)z, (void)y, (void)scale, (void)activation;
    *bytes = 0;
    return SUCCESS;
}

EXPORT status cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operations,
                                                                   void *activation, void *x, size_t *bytes)
{
    (void)handle, (void)mode, (void)operations, (void)activation, (void)x;
    *bytes = 0;
    return SUCCESS;
}

EXPORT status cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int operations, void *x, void *y,
                                                                void *dy, void *dz, void *dx, void *scale,
                                                                void *activation, size_t *bytes)
{
    (void)handle, (void)mode, (void)operations, (void)x, (void)y;
    (void)dy, (void)dz, (void)dx, (void)scale, (void)activation;
    *bytes = 0;
    return SUCCESS;
}

EXPORT status cudnnDropoutGetStatesSize(void *handle, size_t *bytes)
{
    (void)handle;
    *bytes = DROPOUT_STATE_BYTES;
    return SUCCESS;
}
