/* cuBLASLt: descriptors exist, one algorithm is always found, and nothing is computed. */
#include "stand_in.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int status; /* cublasStatus_t */
enum { SUCCESS = 0, ALLOCATION_FAILED = 3 };

/* Larger than any descriptor of the library; the contents are never read. */
struct descriptor { uint64_t words[32]; };

/* cublasLtMatmulHeuristicResult_t */
struct found_algorithm {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    status state;
    float waves;
    int reserved[4];
};
_Static_assert(sizeof(struct found_algorithm) == 96, "cublasLtMatmulHeuristicResult_t");

long stand_in_missing(const char *symbol)
{
    log_line(LOG_NO_OPERATION, "%s does nothing", symbol);
    return SUCCESS;
}

static status create(struct descriptor **descriptor)
{
    *descriptor = calloc(1, sizeof **descriptor);
    return *descriptor ? SUCCESS : ALLOCATION_FAILED;
}

static status destroy(struct descriptor *descriptor)
{
    free(descriptor);
    return SUCCESS;
}

EXPORT status cublasLtCreate(struct descriptor **handle)
{
    return create(handle);
}

EXPORT status cublasLtDestroy(struct descriptor *handle)
{
    return destroy(handle);
}

EXPORT status cublasLtMatmulDescCreate(struct descriptor **descriptor, int compute_type, int scale_type)
{
    (void)compute_type;
    (void)scale_type;
    return create(descriptor);
}

EXPORT status cublasLtMatmulDescDestroy(struct descriptor *descriptor)
{
    return destroy(descriptor);
}

EXPORT status cublasLtMatmulPreferenceCreate(struct descriptor **preference)
{
    return create(preference);
}

EXPORT status cublasLtMatmulPreferenceDestroy(struct descriptor *preference)
{
    return destroy(preference);
}

EXPORT status cublasLtMatrixLayoutCreate(struct descriptor **layout, int type, uint64_t rows, uint64_t columns,
                                         int64_t leading_dimension)
{
    (void)type;
    (void)rows;
    (void)columns;
    (void)leading_dimension;
    return create(layout);
}

EXPORT status cublasLtMatrixLayoutDestroy(struct descriptor *layout)
{
    return destroy(layout);
}

EXPORT status cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                             void *preference, int wanted, struct found_algorithm *results, int *found)
{
    (void)handle;
    (void)operation;
    (void)a;
    (void)b;
    (void)c;
    (void)d;
    (void)preference;
    *found = wanted > 0 ? 1 : 0;
    memset(results, 0, sizeof *results * (size_t)*found);
    return SUCCESS;
}

EXPORT size_t cublasLtGetVersion(void)
{
    return CUDA_MAJOR * 10000 + 400;
}
