/* Arrays and mipmapped arrays. Needs the driver lock. */
#ifndef GPUSIM_ARRAY_H
#define GPUSIM_ARRAY_H

#include "context.h"

/* Frees the arrays that belong to a context. */
void arrays_free_context(struct context *context);

#endif
