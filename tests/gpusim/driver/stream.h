/* Streams: everything on them has happened when the call returns. What is left of a stream is its context and its capture. */
#ifndef GPUSIM_STREAM_H
#define GPUSIM_STREAM_H

#include "context.h"
#include "cuda_abi.h"

/* The graph that a stream records into, NULL when it does not. Needs the driver lock. */
struct graph *stream_capture(CUstream stream);

/* The device (index in the ledger) that a stream works on: its context's, or `current`'s for a default stream. */
int stream_device(CUstream stream, const struct context *current);

/* Creates a stream on a context. Needs the driver lock. */
struct stream *stream_create(struct context *context, unsigned flags, int priority);

#endif
