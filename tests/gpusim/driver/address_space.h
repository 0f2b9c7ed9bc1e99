/*
 * Device addresses: one range of this process's address space, reserved once and committed by the kernel as it is written,
 * so that small copies keep their data. Needs the driver lock.
 */
#ifndef GPUSIM_ADDRESS_SPACE_H
#define GPUSIM_ADDRESS_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A block of whole granules. The latest block of exactly this size given back comes first. 0 when the range is exhausted. */
uint64_t address_space_take(uint64_t bytes, uint64_t alignment);

/* Gives a block back whole; its next owner reads zeros. */
void address_space_give(uint64_t address, uint64_t bytes);

/* Drops what was written to whole pages of the range. */
void address_space_discard(uint64_t address, uint64_t bytes);

/* Whether an address belongs to the device range at all. */
bool address_space_contains(uint64_t address);

#endif
