#include "address_space.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver.h"
#include "log.h"

#define RANGE_START 0x300000000000ull
#define RANGE_BYTES (8ull << 40)
#define PAGE_BYTES 4096ull
#define BUCKETS 1024

struct free_block {
    uint64_t address, bytes;
    struct free_block *next;
};

static uint64_t range_start, range_end, next_unused;
static struct free_block *free_blocks[BUCKETS];

/* The fixed start keeps device addresses recognisable in logs; if it is taken, any other range is used. */
static bool reserve_range(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *range = mmap((void *)RANGE_START, RANGE_BYTES, PROT_READ | PROT_WRITE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (range == MAP_FAILED)
        range = mmap(NULL, RANGE_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (range == MAP_FAILED) {
        log_line(LOG_ALWAYS, "cannot reserve the device address range: %s", strerror(errno));
        return false;
    }
    madvise(range, RANGE_BYTES, MADV_DONTDUMP);
    madvise(range, RANGE_BYTES, MADV_NOHUGEPAGE);
    madvise(range, RANGE_BYTES, MADV_DONTFORK);
    range_start = (uint64_t)range;
    range_end = range_start + RANGE_BYTES;
    next_unused = round_up(range_start, GRANULE_BYTES);
    return true;
}

static struct free_block **bucket_of(uint64_t bytes)
{
    return &free_blocks[(bytes / GRANULE_BYTES) % BUCKETS];
}

static uint64_t reuse(uint64_t bytes, uint64_t alignment)
{
    for (struct free_block **link = bucket_of(bytes); *link; link = &(*link)->next) {
        struct free_block *block = *link;
        if (block->bytes != bytes || block->address % alignment != 0)
            continue;
        uint64_t address = block->address;
        *link = block->next;
        free(block);
        return address;
    }
    return 0;
}

uint64_t address_space_take(uint64_t bytes, uint64_t alignment)
{
    if (!range_start && !reserve_range())
        return 0;
    if (alignment < GRANULE_BYTES)
        alignment = GRANULE_BYTES;
    bytes = round_up(bytes, GRANULE_BYTES);
    uint64_t address = reuse(bytes, alignment);
    if (address)
        return address;
    address = round_up(next_unused, alignment);
    if (address >= range_end || bytes > range_end - address)
        return 0;
    next_unused = address + bytes;
    return address;
}

void address_space_give(uint64_t address, uint64_t bytes)
{
    bytes = round_up(bytes, GRANULE_BYTES);
    address_space_discard(address, bytes);
    struct free_block *block = driver_record(sizeof *block);
    struct free_block **bucket = bucket_of(bytes);
    *block = (struct free_block){.address = address, .bytes = bytes, .next = *bucket};
    *bucket = block;
}

void address_space_discard(uint64_t address, uint64_t bytes)
{
    uint64_t start = round_up(address, PAGE_BYTES);
    uint64_t end = (address + bytes) / PAGE_BYTES * PAGE_BYTES;
    if (start < end)
        madvise((void *)start, end - start, MADV_DONTNEED);
}

bool address_space_contains(uint64_t address)
{
    return address >= range_start && address < range_end;
}
