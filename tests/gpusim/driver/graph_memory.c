#include "graph_memory.h"

#include <stdlib.h>

#include "accounting.h"
#include "address_space.h"
#include "driver.h"

struct node {
    uint64_t address, block_bytes;
    struct video_memory video; /* bytes 0: not backed */
    bool fresh;                /* backed by the current launch */
    bool freed_by_graph;
    bool outstanding; /* launched and not yet freed */
};

struct graph_memory {
    bool graph_alive;
    unsigned executables;
    int device;
    uint64_t backed_bytes;
    size_t count;
    struct node *nodes;
    struct graph_memory *next;
};

static struct graph_memory *memories;

struct graph_memory *graph_memory_create(void)
{
    struct graph_memory *memory = driver_record(sizeof *memory);
    memory->graph_alive = true;
    memory->next = memories;
    memories = memory;
    return memory;
}

static struct node *find(struct graph_memory *memory, uint64_t address)
{
    for (size_t index = 0; index < memory->count; index++)
        if (memory->nodes[index].address == address)
            return &memory->nodes[index];
    return NULL;
}

static uint64_t outstanding_bytes(const struct graph_memory *memory)
{
    uint64_t bytes = 0;
    for (size_t index = 0; index < memory->count; index++)
        if (memory->nodes[index].outstanding)
            bytes += memory->nodes[index].block_bytes;
    return bytes;
}

static void unback(struct graph_memory *memory, struct node *node)
{
    video_memory_unmap(&node->video, node->address);
    video_memory_give(&node->video, memory->device);
}

static bool back_node(struct graph_memory *memory, struct node *node)
{
    node->fresh = !node->video.bytes;
    if (!node->fresh)
        return true;
    if (!video_memory_take(&node->video, memory->device, node->block_bytes, VIDEO_MAPPABLE)) {
        node->fresh = false;
        return false;
    }
    video_memory_map(&node->video, node->address);
    return true;
}

/* Backs all nodes that are not backed, or none. */
static bool back(struct graph_memory *memory)
{
    size_t index = 0;
    while (index < memory->count && back_node(memory, &memory->nodes[index]))
        index++;
    if (index == memory->count)
        return true;
    while (index-- > 0)
        if (memory->nodes[index].fresh)
            unback(memory, &memory->nodes[index]);
    return false;
}

static void shrink(struct graph_memory *memory)
{
    uint64_t kept_bytes = outstanding_bytes(memory);
    if (kept_bytes >= memory->backed_bytes)
        return;
    accounting_remove(memory->device, LEDGER_GRAPH, memory->backed_bytes - kept_bytes);
    for (size_t index = 0; index < memory->count; index++)
        if (memory->nodes[index].video.bytes && !memory->nodes[index].outstanding)
            unback(memory, &memory->nodes[index]);
    memory->backed_bytes = kept_bytes;
}

static void forget(struct graph_memory *memory)
{
    for (size_t index = 0; index < memory->count; index++) {
        address_space_give(memory->nodes[index].address, memory->nodes[index].block_bytes);
        allocation_remove(allocation_at(memory->nodes[index].address));
    }
    struct graph_memory **link = &memories;
    while (*link != memory)
        link = &(*link)->next;
    *link = memory->next;
    free(memory->nodes);
    free(memory);
}

static void settle(struct graph_memory *memory)
{
    if (memory->executables)
        return;
    shrink(memory);
    if (!memory->graph_alive && memory->backed_bytes == 0)
        forget(memory);
}

void graph_memory_add_executable(struct graph_memory *memory)
{
    memory->executables++;
}

void graph_memory_remove_executable(struct graph_memory *memory)
{
    memory->executables--;
    settle(memory);
}

void graph_memory_release(struct graph_memory *memory)
{
    memory->graph_alive = false;
    settle(memory);
}

CUresult graph_memory_add(struct graph_memory *memory, int device, uint64_t bytes, CUdeviceptr *address)
{
    struct allocation allocation = {
        .kind = ALLOCATION_GRAPH, .bytes = bytes, .device = device, .block_bytes = round_up(bytes, GRANULE_BYTES),
        .graph_memory = memory};
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct node *nodes = realloc(memory->nodes, (memory->count + 1) * sizeof *nodes);
    if (!nodes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->nodes = nodes;
    allocation.address = address_space_take(allocation.block_bytes, GRANULE_BYTES);
    if (!allocation.address)
        return CUDA_ERROR_OUT_OF_MEMORY;
    nodes[memory->count++] = (struct node){.address = allocation.address, .block_bytes = allocation.block_bytes};
    memory->device = device;
    allocation_insert(&allocation);
    *address = allocation.address;
    return CUDA_SUCCESS;
}

void graph_memory_freed_by_graph(struct graph_memory *memory, CUdeviceptr address)
{
    struct node *node = find(memory, address);
    if (node)
        node->freed_by_graph = true;
}

CUresult graph_memory_launch(struct graph_memory *memory)
{
    uint64_t needed_bytes = 0;
    for (size_t index = 0; index < memory->count; index++)
        needed_bytes += memory->nodes[index].block_bytes;
    uint64_t more_bytes = needed_bytes - memory->backed_bytes;
    if (more_bytes) {
        if (!back(memory))
            return CUDA_ERROR_OUT_OF_MEMORY;
        accounting_add(memory->device, LEDGER_GRAPH, more_bytes);
        memory->backed_bytes = needed_bytes;
    }
    for (size_t index = 0; index < memory->count; index++)
        memory->nodes[index].outstanding = !memory->nodes[index].freed_by_graph;
    return CUDA_SUCCESS;
}

void graph_memory_free(struct allocation *allocation)
{
    struct graph_memory *memory = allocation->graph_memory;
    find(memory, allocation->address)->outstanding = false;
    settle(memory);
}

void graph_memory_trim(int device)
{
    for (struct graph_memory *memory = memories; memory; memory = memory->next)
        if (memory->device == device)
            shrink(memory);
}

uint64_t graph_memory_backed_bytes(int device)
{
    uint64_t bytes = 0;
    for (struct graph_memory *memory = memories; memory; memory = memory->next)
        if (memory->device == device)
            bytes += memory->backed_bytes;
    return bytes;
}
