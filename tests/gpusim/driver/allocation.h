/* The table of all allocations with an address, ordered by address. Needs the driver lock. */
#ifndef GPUSIM_ALLOCATION_H
#define GPUSIM_ALLOCATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "video_memory.h"

enum allocation_kind {
    ALLOCATION_LINEAR,          /* cuMemAlloc, cuMemAllocPitch */
    ALLOCATION_MANAGED,         /* cuMemAllocManaged */
    ALLOCATION_PINNED_HOST,     /* cuMemHostAlloc, cuMemAllocHost */
    ALLOCATION_REGISTERED_HOST, /* cuMemHostRegister */
    ALLOCATION_POOL,            /* stream-ordered */
    ALLOCATION_GRAPH,           /* a graph's allocation node */
    ALLOCATION_MAPPING,         /* cuMemMap */
    ALLOCATION_IPC_ALIAS,       /* cuIpcOpenMemHandle */
    ALLOCATION_EXTERNAL_ALIAS,  /* cuExternalMemoryGetMappedBuffer */
    ALLOCATION_POOL_ALIAS,      /* cuMemPoolImportPointer */
    ALLOCATION_MODULE_GLOBAL,   /* a variable of a module: part of the context overhead */
};

struct physical;

struct allocation {
    uint64_t address;
    uint64_t bytes;       /* as requested; pitch * height for pitched memory */
    uint64_t block_bytes; /* size of its address block; 0 for a small block or a foreign address */
    enum allocation_kind kind;
    int device; /* index of the device in the ledger */
    struct video_memory video; /* of its address block */
    uint32_t object;           /* of the kernel driver, for host memory and imports; 0: none */
    struct context *context; /* freed with this context; NULL if it outlives contexts */
    struct memory_pool *pool;
    struct physical *physical;
    struct graph_memory *graph_memory;
    uint64_t identity;        /* never reused, unlike the address */
    unsigned opened;          /* IPC aliases: open calls not yet closed */
    uint8_t origin[64];       /* IPC aliases: the handle that was opened */
};

/* Copies `value` into the table under a new identity. */
struct allocation *allocation_insert(const struct allocation *value);

/* The allocation that starts at, or contains, an address; NULL if there is none. */
struct allocation *allocation_at(uint64_t address);
struct allocation *allocation_containing(uint64_t address);

/* Whether any allocation overlaps [address, address + bytes). */
bool allocation_overlaps(uint64_t address, uint64_t bytes);

/* The lowest address of [start, end) with this many free bytes, in steps of 512; 0 if there is none. */
uint64_t allocation_hole(uint64_t start, uint64_t end, uint64_t bytes);

void allocation_remove(struct allocation *allocation);

/* The table by index, for iteration: 0 <= index < allocation_count(). */
size_t allocation_count(void);
struct allocation *allocation_by_index(size_t index);

#endif
