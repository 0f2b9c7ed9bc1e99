#include "graph.h"

#include <stdlib.h>

#include "allocation.h"
#include "device.h"
#include "driver.h"
#include "graph_memory.h"
#include "log.h"

struct graph {
    struct graph_memory *memory;
    size_t nodes;
};

struct graph_executable {
    struct graph_memory *memory;
    struct graph_executable *next;
};

static struct graph_executable *executables;

/* All nodes share this address: a node has no contents. */
static uint8_t a_node;

struct graph *graph_create(void)
{
    struct graph *graph = driver_record(sizeof *graph);
    graph->memory = graph_memory_create();
    return graph;
}

CUresult graph_add_allocation(struct graph *graph, int device, uint64_t bytes, CUdeviceptr *address)
{
    CUresult result = graph_memory_add(graph->memory, device, bytes, address);
    graph->nodes += result == CUDA_SUCCESS;
    return result;
}

CUresult graph_add_free(struct graph *graph, CUdeviceptr address)
{
    if (!allocation_at(address))
        return CUDA_ERROR_INVALID_VALUE;
    graph_memory_freed_by_graph(graph->memory, address);
    graph->nodes++;
    return CUDA_SUCCESS;
}

/* ---- nodes ---- */

static CUresult add_allocation_node(
    CUgraphNode *node, struct graph *graph, const CUmemPoolProps *pool, size_t bytes, CUdeviceptr *address)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    int device;
    result = device_of_ordinal(pool->location.id, &device);
    if (result == CUDA_SUCCESS)
        result = graph_add_allocation(graph, device, bytes, address);
    if (result == CUDA_SUCCESS)
        *node = (CUgraphNode)&a_node;
    driver_leave();
    return result;
}

static CUresult add_free_node(CUgraphNode *node, struct graph *graph, CUdeviceptr address)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = graph_add_free(graph, address);
    if (result == CUDA_SUCCESS)
        *node = (CUgraphNode)&a_node;
    driver_leave();
    return result;
}

DRIVER_API(cuGraphAddMemAllocNode)(
    CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t dependency_count,
    CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    (void)dependencies, (void)dependency_count;
    return add_allocation_node(node, graph, &parameters->pool, parameters->size_bytes, &parameters->address);
}

DRIVER_API(cuGraphAddMemFreeNode)(
    CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t dependency_count, CUdeviceptr address)
{
    (void)dependencies, (void)dependency_count;
    return add_free_node(node, graph, address);
}

static CUresult add_node(CUgraphNode *node, struct graph *graph, CUgraphNodeParams *parameters)
{
    if (parameters->type == GRAPH_NODE_ALLOCATE) {
        CUDA_MEM_ALLOC_NODE_PARAMS *allocate = &parameters->allocate;
        return add_allocation_node(node, graph, &allocate->pool, allocate->size_bytes, &allocate->address);
    }
    if (parameters->type == GRAPH_NODE_FREE)
        return add_free_node(node, graph, parameters->free.address);
    CUresult result = driver_check();
    if (result == CUDA_SUCCESS) {
        graph->nodes++;
        *node = (CUgraphNode)&a_node;
    }
    return result;
}

DRIVER_API(cuGraphAddNode)(
    CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t dependency_count,
    CUgraphNodeParams *parameters)
{
    (void)dependencies, (void)dependency_count;
    return add_node(node, graph, parameters);
}

DRIVER_API(cuGraphAddNode_v2)(
    CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
    size_t dependency_count, CUgraphNodeParams *parameters)
{
    (void)dependencies, (void)edges, (void)dependency_count;
    return add_node(node, graph, parameters);
}

/* ---- graphs ---- */

DRIVER_API(cuGraphCreate)(CUgraph *graph, unsigned flags)
{
    (void)flags;
    CUresult result = driver_check();
    if (result == CUDA_SUCCESS)
        *graph = graph_create();
    return result;
}

DRIVER_API(cuGraphDestroy)(CUgraph graph)
{
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        graph_memory_release(graph->memory);
        free(graph);
        driver_leave();
    }
    return result;
}

/* A captured graph has at least one node: kernels are not recorded, and callers treat 0 as an empty capture. */
DRIVER_API(cuGraphGetNodes)(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    (void)nodes;
    *count = graph->nodes ? graph->nodes : 1;
    return driver_check();
}

DRIVER_API(cuGraphInstantiateWithFlags)(CUgraphExec *executable_out, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct graph_executable *executable = driver_record(sizeof *executable);
    executable->memory = graph->memory;
    graph_memory_add_executable(executable->memory);
    executable->next = executables;
    executables = executable;
    *executable_out = executable;
    driver_leave();
    return CUDA_SUCCESS;
}

DRIVER_API(cuGraphInstantiateWithParams)(CUgraphExec *executable, CUgraph graph, void *parameters)
{
    (void)parameters;
    return sim_cuGraphInstantiateWithFlags(executable, graph, 0);
}

DRIVER_API(cuGraphInstantiate)(
    CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
    (void)error_node, (void)log, (void)log_bytes;
    return sim_cuGraphInstantiateWithFlags(executable, graph, 0);
}

DRIVER_API(cuGraphLaunch)(CUgraphExec executable, CUstream stream)
{
    (void)stream;
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        result = graph_memory_launch(executable->memory);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuGraphLaunch = %d", result);
    return result;
}

DRIVER_API(cuGraphExecDestroy)(CUgraphExec executable)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct graph_executable **link = &executables;
    while (*link && *link != executable)
        link = &(*link)->next;
    if (*link) {
        *link = executable->next;
        graph_memory_remove_executable(executable->memory);
        free(executable);
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    driver_leave();
    return result;
}

/* ---- graph memory of a device ---- */

DRIVER_API(cuDeviceGraphMemTrim)(CUdevice ordinal)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    int device;
    result = device_of_ordinal(ordinal, &device);
    if (result == CUDA_SUCCESS)
        graph_memory_trim(device);
    driver_leave();
    return result;
}

DRIVER_API(cuDeviceGetGraphMemAttribute)(CUdevice ordinal, int attribute, void *value)
{
    (void)attribute;
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    int device;
    result = device_of_ordinal(ordinal, &device);
    if (result == CUDA_SUCCESS)
        *(uint64_t *)value = graph_memory_backed_bytes(device);
    driver_leave();
    return result;
}
