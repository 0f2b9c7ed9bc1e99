#include "physical.h"

#include <stdlib.h>
#include <string.h>

#include "accounting.h"
#include "driver.h"

/* Handle n stands for entry n - 1. The lowest free entry is taken first: a watcher must bear that handle values come back. */
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

CUresult physical_create(enum physical_kind kind, int device, uint64_t bytes, struct physical **created)
{
    if (kind == PHYSICAL_DEVICE) {
        if (!accounting_occupy(device, bytes))
            return CUDA_ERROR_OUT_OF_MEMORY;
        accounting_allocated(device, LEDGER_PHYSICAL, bytes);
    } else if (kind == PHYSICAL_HOST) {
        accounting_host_allocated(LEDGER_HOST_PHYSICAL, bytes);
    }
    size_t entry = free_entry();
    struct physical *physical = driver_record(sizeof *physical);
    *physical = (struct physical){
        .handle = entry + 1, .kind = kind, .device = device, .bytes = bytes, .references = 1};
    table[entry] = physical;
    *created = physical;
    return CUDA_SUCCESS;
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
        accounting_vacate(physical->device, physical->bytes);
    } else if (physical->kind == PHYSICAL_HOST) {
        accounting_host_freed(LEDGER_HOST_PHYSICAL, physical->bytes);
    }
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
