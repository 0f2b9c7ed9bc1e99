#include "small_blocks.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "address_space.h"
#include "driver.h"
#include "ledger.h"
#include "video_memory.h"

#define UNIT_BYTES 512ull
#define UNITS (GRANULE_BYTES / UNIT_BYTES)
#define BUCKETS 1024

struct slab {
    uint64_t address;
    int device;
    struct video_memory video;
    unsigned free_units;
    uint8_t taken[UNITS];
    struct slab *next_of_bucket;
    struct slab *previous, *next; /* list of the device's slabs with free space */
};

static struct slab *slabs_by_address[BUCKETS];
static struct slab *slabs_with_room[LEDGER_DEVICES];

static struct slab **bucket_of(uint64_t address)
{
    return &slabs_by_address[(address / GRANULE_BYTES) % BUCKETS];
}

static void offer(struct slab *slab)
{
    slab->previous = NULL;
    slab->next = slabs_with_room[slab->device];
    if (slab->next)
        slab->next->previous = slab;
    slabs_with_room[slab->device] = slab;
}

static void withdraw(struct slab *slab)
{
    if (slab->previous)
        slab->previous->next = slab->next;
    else
        slabs_with_room[slab->device] = slab->next;
    if (slab->next)
        slab->next->previous = slab->previous;
}

static struct slab *new_slab(int device)
{
    struct video_memory video;
    if (!video_memory_take(&video, device, GRANULE_BYTES, VIDEO_LINEAR))
        return NULL;
    uint64_t address = address_space_take(GRANULE_BYTES, GRANULE_BYTES);
    if (!address) {
        video_memory_give(&video, device);
        return NULL;
    }
    video_memory_map(&video, address);
    struct slab *slab = driver_record(sizeof *slab);
    struct slab **bucket = bucket_of(address);
    slab->address = address;
    slab->device = device;
    slab->video = video;
    slab->free_units = UNITS;
    slab->next_of_bucket = *bucket;
    *bucket = slab;
    offer(slab);
    return slab;
}

static uint64_t take_from(struct slab *slab, unsigned units)
{
    unsigned run = 0;
    for (unsigned unit = 0; unit < UNITS; unit++) {
        run = slab->taken[unit] ? 0 : run + 1;
        if (run < units)
            continue;
        unsigned first = unit + 1 - units;
        memset(slab->taken + first, 1, units);
        slab->free_units -= units;
        if (slab->free_units == 0)
            withdraw(slab);
        return slab->address + first * UNIT_BYTES;
    }
    return 0;
}

static unsigned units_of(uint64_t bytes)
{
    return (unsigned)(round_up(bytes, UNIT_BYTES) / UNIT_BYTES);
}

uint64_t small_block_take(int device, uint64_t bytes)
{
    unsigned units = units_of(bytes);
    for (struct slab *slab = slabs_with_room[device]; slab; slab = slab->next) {
        uint64_t address = slab->free_units >= units ? take_from(slab, units) : 0;
        if (address)
            return address;
    }
    struct slab *slab = new_slab(device);
    return slab ? take_from(slab, units) : 0;
}

static void give_slab(struct slab **link)
{
    struct slab *slab = *link;
    *link = slab->next_of_bucket;
    withdraw(slab);
    video_memory_unmap(&slab->video, slab->address);
    video_memory_give(&slab->video, slab->device);
    address_space_give(slab->address, GRANULE_BYTES);
    free(slab);
}

static struct slab **link_of(uint64_t address)
{
    uint64_t slab_address = address / GRANULE_BYTES * GRANULE_BYTES;
    struct slab **link = bucket_of(address);
    while (*link && (*link)->address != slab_address)
        link = &(*link)->next_of_bucket;
    return link;
}

uint32_t small_block_object(uint64_t address)
{
    const struct slab *slab = *link_of(address);
    return slab ? slab->video.object : 0;
}

void small_block_give(uint64_t address, uint64_t bytes)
{
    struct slab **link = link_of(address);
    struct slab *slab = *link;
    if (!slab)
        return;
    uint64_t slab_address = slab->address;
    unsigned units = units_of(bytes);
    memset(slab->taken + (address - slab_address) / UNIT_BYTES, 0, units);
    if (slab->free_units == 0)
        offer(slab);
    slab->free_units += units;
    if (slab->free_units == UNITS)
        give_slab(link);
}
