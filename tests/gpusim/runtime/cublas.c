/* cuBLAS: handles exist and store their settings; computations succeed without computing anything. */
#include "cublas_memory.h"
#include "stand_in.h"

#include <stddef.h>
#include <stdlib.h>

typedef int status; /* cublasStatus_t */
enum { SUCCESS = 0, ALLOCATION_FAILED = 3 };
enum { VERSION_MAJOR = CUDA_MAJOR, VERSION_MINOR = 4, VERSION_PATCH = 0 };

struct handle {
    int math_mode;
    int pointer_mode;
    void *stream;
    struct cublas_memory memory;
};

long stand_in_missing(const char *symbol)
{
    log_line(LOG_NO_OPERATION, "%s does nothing", symbol);
    return SUCCESS;
}

EXPORT status cublasCreate_v2(struct handle **handle)
{
    *handle = calloc(1, sizeof **handle);
    return *handle && cublas_memory_take(&(*handle)->memory) ? SUCCESS : ALLOCATION_FAILED;
}

EXPORT status cublasDestroy_v2(struct handle *handle)
{
    cublas_memory_give(&handle->memory);
    free(handle);
    return SUCCESS;
}

EXPORT status cublasGetVersion_v2(struct handle *handle, int *version)
{
    (void)handle;
    *version = VERSION_MAJOR * 10000 + VERSION_MINOR * 100 + VERSION_PATCH;
    return SUCCESS;
}

EXPORT status cublasGetProperty(int property, int *value)
{
    static const int VALUES[] = {VERSION_MAJOR, VERSION_MINOR, VERSION_PATCH};
    *value = VALUES[property];
    return SUCCESS;
}

EXPORT status cublasSetStream_v2(struct handle *handle, void *stream)
{
    handle->stream = stream;
    return SUCCESS;
}

EXPORT status cublasGetStream_v2(struct handle *handle, void **stream)
{
    *stream = handle->stream;
    return SUCCESS;
}

EXPORT status cublasSetMathMode(struct handle *handle, int mode)
{
    handle->math_mode = mode;
    return SUCCESS;
}

EXPORT status cublasGetMathMode(struct handle *handle, int *mode)
{
    *mode = handle->math_mode;
    return SUCCESS;
}

EXPORT status cublasSetPointerMode_v2(struct handle *handle, int mode)
{
    handle->pointer_mode = mode;
    return SUCCESS;
}

EXPORT status cublasGetPointerMode_v2(struct handle *handle, int *mode)
{
    *mode = handle->pointer_mode;
    return SUCCESS;
}

EXPORT const char *cublasGetStatusString(status code)
{
    return code == SUCCESS ? "success" : "cuBLAS error";
}

EXPORT const char *cublasGetStatusName(status code)
{
    return code == SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_INTERNAL_ERROR";
}
