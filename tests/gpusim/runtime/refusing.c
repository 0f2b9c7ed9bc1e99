/* A library without any source of its own: every function of it is refused. */
#include "stand_in.h"

enum { REFUSED = 1 }; /* a failure in the status codes of every library concerned */

long stand_in_missing(const char *symbol)
{
    log_line(LOG_UNSUPPORTED, "%s is not simulated", symbol);
    return REFUSED;
}
