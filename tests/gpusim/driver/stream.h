/* Streams: all their work is done when the call returns. A stream only has a context and a capture. */
#ifndef GPUSIM_STREAM_H
#define GPUSIM_STREAM_H

#include "context.h"
#include "cuda_abi.h"

/* The graph into which a stream records, NULL without a capture. Needs the driver lock. */
struct graph *stream_capture(CUstream stream);

/* The device (index in the ledger) of a stream: its context's, or `current`'s for a default stream. */
int stream_device(CUstream stream, const struct context *current);

/* Creates a stream on a context. Needs the driver lock. */
struct stream *stream_create(struct context *context, unsigned flags, int priority);

#endif
