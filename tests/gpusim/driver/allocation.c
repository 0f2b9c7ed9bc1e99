#include "allocation.h"

#include <stdlib.h>
#include <string.h>

#include "driver.h"

static struct allocation **table;
static size_t count, capacity;
static uint64_t next_identity = 1;

/* Number of allocations that start at or below the address. */
static size_t position_after(uint64_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle]->address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void grow(void)
{
    size_t larger = capacity ? capacity * 2 : 1024;
    struct allocation **moved = driver_record(larger * sizeof *moved);
    if (count)
        memcpy(moved, table, count * sizeof *moved);
    free(table);
    table = moved;
    capacity = larger;
}

struct allocation *allocation_insert(const struct allocation *value)
{
    if (count == capacity)
        grow();
    struct allocation *allocation = driver_record(sizeof *allocation);
    *allocation = *value;
    allocation->identity = next_identity++;
    size_t position = position_after(value->address);
    memmove(table + position + 1, table + position, (count - position) * sizeof *table);
    table[position] = allocation;
    count++;
    return allocation;
}

struct allocation *allocation_at(uint64_t address)
{
    size_t position = position_after(address);
    return position && table[position - 1]->address == address ? table[position - 1] : NULL;
}

struct allocation *allocation_containing(uint64_t address)
{
    size_t position = position_after(address);
    if (!position)
        return NULL;
    struct allocation *below = table[position - 1];
    return address - below->address < below->bytes ? below : NULL;
}

bool allocation_overlaps(uint64_t address, uint64_t bytes)
{
    size_t position = position_after(address);
    return allocation_containing(address) || (position < count && table[position]->address - address < bytes);
}

uint64_t allocation_hole(uint64_t start, uint64_t end, uint64_t bytes)
{
    uint64_t address = start;
    for (size_t position = position_after(start - 1); position < count && table[position]->address < end; position++) {
        if (table[position]->address - address >= bytes)
            return address;
        address = round_up(table[position]->address + table[position]->bytes, 512);
    }
    return address < end && bytes <= end - address ? address : 0;
}

void allocation_remove(struct allocation *allocation)
{
    size_t position = position_after(allocation->address) - 1;
    memmove(table + position, table + position + 1, (count - position - 1) * sizeof *table);
    count--;
    free(allocation);
}

size_t allocation_count(void)
{
    return count;
}

struct allocation *allocation_by_index(size_t index)
{
    return table[index];
}
