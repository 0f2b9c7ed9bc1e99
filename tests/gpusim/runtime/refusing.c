/* A library without sources: all its functions are refused. */
#include "stand_in.h"

enum { REFUSED = 1 }; /* a failure in the status codes of all these libraries */

long stand_in_missing(const char *symbol)
{
    log_line(LOG_UNSUPPORTED, "%s is not simulated", symbol);
    return REFUSED;
}
