/*
 * The memory of a graph's allocation nodes, shared by the graph and the executables made of it. A node has its address at
 * once. The first launch takes device memory for all nodes; it stays until there is no executable left or the device's graph
 * memory is trimmed, and longer for a node that the graph itself does not free: until somebody frees it. Driver lock.
 */
#ifndef GPUSIM_GRAPH_MEMORY_H
#define GPUSIM_GRAPH_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "allocation.h"

/* New, held by one graph. */
struct graph_memory *graph_memory_create(void);

/* An executable comes to hold it, or stops to; `graph_memory_release` is the graph's own. */
void graph_memory_add_executable(struct graph_memory *memory);
void graph_memory_remove_executable(struct graph_memory *memory);
void graph_memory_release(struct graph_memory *memory);

/* Adds an allocation node, or notes that the graph frees one. */
CUresult graph_memory_add(struct graph_memory *memory, int device, uint64_t bytes, CUdeviceptr *address);
void graph_memory_freed_by_graph(struct graph_memory *memory, CUdeviceptr address);

/* What a launch does; CUDA_ERROR_OUT_OF_MEMORY when the device has no room for the nodes. */
CUresult graph_memory_launch(struct graph_memory *memory);

/* What an ordinary free of a node's address does. */
void graph_memory_free(struct allocation *allocation);

/* Gives back what only waits for the next launch. */
void graph_memory_trim(int device);

/* What graphs hold of a device. */
uint64_t graph_memory_backed_bytes(int device);

#endif
