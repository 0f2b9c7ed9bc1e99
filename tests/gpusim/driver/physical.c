#include "physical.h"

#include <stdlib.h>
#include <string.h>

#include "accounting.h"
#include "driver.h"
#include "host_object.h"
#include "rm.h"

/* Handle n refers to entry n - 1. The lowest free entry is taken first: memwatch must tolerate reused handles. */
static struct physical **table;
static size_t capacity;

static size_t free_entry(void)
{
    size_t entry = 0;
    while (entry < capacity && table[entry])
        entry++;
    if (entry < capacity)
        return entry;
    size_t larger = capacity ? capacity * 2 : 256;
    struct physical **moved = driver_record(larger * sizeof *moved);
    if (capacity)
        memcpy(moved, table, capacity * sizeof *moved);
    free(table);
    table = moved;
    capacity = larger;
    return entry;
}

static struct physical *insert(struct physical value)
{
    size_t entry = free_entry();
    struct physical *physical = driver_record(sizeof *physical);
    *physical = value;
    physical->handle = entry + 1;
    physical->references = 1;
    table[entry] = physical;
    return physical;
}

CUresult physical_create(enum physical_kind kind, int device, uint64_t bytes, struct physical **created)
{
    struct physical physical = {.kind = kind, .device = device, .bytes = bytes};
    if (kind == PHYSICAL_DEVICE) {
        if (!video_memory_take(&physical.video, device, bytes, VIDEO_MAPPABLE))
            return CUDA_ERROR_OUT_OF_MEMORY;
        accounting_allocated(device, LEDGER_PHYSICAL, bytes);
    } else if (kind == PHYSICAL_HOST) {
        physical.object = host_object_take(device, bytes);
        accounting_host_allocated(LEDGER_HOST_PHYSICAL, bytes);
    }
    *created = insert(physical);
    return CUDA_SUCCESS;
}

struct physical *physical_import(const struct shared_description *description)
{
    int device = description->device;
    bool asks = rm_is_on() && description->object;
    uint32_t own = asks ? rm_duplicate(device, description->client, description->object) : 0;
    if (own)
        accounting_import(device, description, own);
    return insert(
        (struct physical){.kind = PHYSICAL_IMPORTED, .device = device, .bytes = description->bytes, .object = own});
}

uint32_t physical_object(const struct physical *physical)
{
    return physical->kind == PHYSICAL_DEVICE ? physical->video.object : physical->object;
}

struct physical *physical_of_handle(CUmemGenericAllocationHandle handle)
{
    if (handle == 0 || handle > capacity)
        return NULL;
    struct physical *physical = table[handle - 1];
    return physical && physical->references ? physical : NULL;
}

static void free_if_unheld(struct physical *physical)
{
    if (physical->references || physical->mappings)
        return;
    if (physical->kind == PHYSICAL_DEVICE) {
        accounting_freed(physical->device, LEDGER_PHYSICAL, physical->bytes);
        video_memory_give(&physical->video, physical->device);
    } else if (physical->kind == PHYSICAL_HOST) {
        accounting_host_freed(LEDGER_HOST_PHYSICAL, physical->bytes);
    }
    host_object_give(physical->device, physical->object);
    if (physical->kind == PHYSICAL_IMPORTED && physical->object)
        accounting_drop_import(physical->object);
    table[physical->handle - 1] = NULL;
    free(physical);
}

void physical_retain(struct physical *physical)
{
    physical->references++;
}

void physical_release(struct physical *physical)
{
    physical->references--;
    free_if_unheld(physical);
}

void physical_map(struct physical *physical)
{
    physical->mappings++;
}

void physical_unmap(struct physical *physical)
{
    physical->mappings--;
    free_if_unheld(physical);
}
