/* CUPTI: profiling is not simulated, and PyTorch's profiler gets an error. */
#include "stand_in.h"

enum { SUCCESS = 0, NOT_SUPPORTED = 27 }; /* CUptiResult */

long stand_in_missing(const char *symbol)
{
    log_line(LOG_UNSUPPORTED, "%s is not simulated", symbol);
    return NOT_SUPPORTED;
}

EXPORT int cuptiGetResultString(int result, const char **text)
{
    *text = result == SUCCESS ? "success" : "profiling is not simulated";
    return SUCCESS;
}
