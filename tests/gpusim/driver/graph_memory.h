/*
 * Memory of a graph's allocation nodes, shared by the graph and its executables. A node has its address from the
 * start. The first launch takes device memory for all nodes; it is kept until no executable is left or the device's graph
 * memory is trimmed. A node that the graph does not free keeps its memory until a program frees it. Needs the driver lock.
 */
#ifndef GPUSIM_GRAPH_MEMORY_H
#define GPUSIM_GRAPH_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "allocation.h"

/* Creates a record that is held by one graph. */
struct graph_memory *graph_memory_create(void);

/* Adds or removes an executable as a holder; `graph_memory_release` removes the graph. */
void graph_memory_add_executable(struct graph_memory *memory);
void graph_memory_remove_executable(struct graph_memory *memory);
void graph_memory_release(struct graph_memory *memory);

/* Adds an allocation node, or records that the graph frees one. */
CUresult graph_memory_add(struct graph_memory *memory, int device, uint64_t bytes, CUdeviceptr *address);
void graph_memory_freed_by_graph(struct graph_memory *memory, CUdeviceptr address);

/* Backs the nodes for a launch; CUDA_ERROR_OUT_OF_MEMORY if the device has too little memory left. */
CUresult graph_memory_launch(struct graph_memory *memory);

/* Frees a node's address outside the graph. */
void graph_memory_free(struct allocation *allocation);

/* Releases memory that is only kept for the next launch. */
void graph_memory_trim(int device);

/* Device memory held by graphs. */
uint64_t graph_memory_backed_bytes(int device);

#endif
