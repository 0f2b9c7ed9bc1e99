/* cuFFT: plans exist and report a workspace size; executing a plan computes nothing. */
#include "stand_in.h"

#include <stddef.h>

typedef int status; /* cufftResult */
enum { SUCCESS = 0 };
enum { WORKSPACE_BYTES_PER_ELEMENT = 8 };

long stand_in_missing(const char *symbol)
{
    log_line(LOG_NO_OPERATION, "%s does nothing", symbol);
    return SUCCESS;
}

EXPORT status cufftCreate(int *plan)
{
    static _Atomic int last_plan;
    *plan = ++last_plan;
    return SUCCESS;
}

EXPORT status cufftXtMakePlanMany(int plan, int rank, long long *lengths, long long *input_embed, long long input_stride,
                                  long long input_distance, int input_type, long long *output_embed,
                                  long long output_stride, long long output_distance, int output_type, long long batch,
                                  size_t *workspace_bytes, int compute_type)
{
    (void)plan;
    (void)input_embed;
    (void)input_stride;
    (void)input_distance;
    (void)input_type;
    (void)output_embed;
    (void)output_stride;
    (void)output_distance;
    (void)output_type;
    (void)compute_type;
    size_t elements = (size_t)batch;
    for (int i = 0; i < rank; i++)
        elements *= (size_t)lengths[i];
    *workspace_bytes = elements * WORKSPACE_BYTES_PER_ELEMENT;
    return SUCCESS;
}
