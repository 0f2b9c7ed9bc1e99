/* Graphs with their memory nodes; kernels are not recorded. Needs the driver lock. */
#ifndef GPUSIM_GRAPH_H
#define GPUSIM_GRAPH_H

#include "cuda_abi.h"

struct graph *graph_create(void);

/* Adds a node that allocates or frees memory at launch. */
CUresult graph_add_allocation(struct graph *graph, int device, uint64_t bytes, CUdeviceptr *address);
CUresult graph_add_free(struct graph *graph, CUdeviceptr address);

#endif
