/* Physical memory handles of cuMemCreate, with their references. Needs the driver lock. */
#ifndef GPUSIM_PHYSICAL_H
#define GPUSIM_PHYSICAL_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "shared_handle.h"
#include "video_memory.h"

enum physical_kind {
    PHYSICAL_DEVICE,    /* occupies a device */
    PHYSICAL_HOST,      /* host memory */
    PHYSICAL_IMPORTED,  /* memory of another handle: 0 bytes here */
    PHYSICAL_MULTICAST, /* a multicast object without memory */
};

struct physical {
    CUmemGenericAllocationHandle handle;
    enum physical_kind kind;
    int device;
    uint64_t bytes;
    struct video_memory video; /* of a device */
    uint32_t object;           /* of the kernel driver, for host memory or another process's; 0: none */
    CUmemAllocationProp properties;
    unsigned references; /* create, import and retain, minus release */
    unsigned mappings;   /* including multicast bindings */
};

/* Creates memory with one reference. CUDA_ERROR_OUT_OF_MEMORY when its device is full. */
CUresult physical_create(enum physical_kind kind, int device, uint64_t bytes, struct physical **created);

/* Imports another process's memory by its client and object in the kernel driver. */
struct physical *physical_import(const struct shared_description *description);

/* The kernel driver's object for mapping and export; 0 without one. */
uint32_t physical_object(const struct physical *physical);

/* The memory of a live handle; NULL for a handle that was released as often as it was obtained. */
struct physical *physical_of_handle(CUmemGenericAllocationHandle handle);

void physical_retain(struct physical *physical);
void physical_release(struct physical *physical);
void physical_map(struct physical *physical);
void physical_unmap(struct physical *physical);

#endif
