/*
 * Device addresses: one range of this process's address space, reserved once and committed by the kernel on first write,
 * so that small copies keep their data. Needs the driver lock.
 */
#ifndef GPUSIM_ADDRESS_SPACE_H
#define GPUSIM_ADDRESS_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Takes a block of whole granules: first the block of exactly this size that was returned last. 0 when the range is exhausted. */
uint64_t address_space_take(uint64_t bytes, uint64_t alignment);

/* Returns a whole block; its next owner reads zeros. */
void address_space_give(uint64_t address, uint64_t bytes);

/* Discards data written to whole pages of the range. */
void address_space_discard(uint64_t address, uint64_t bytes);

/* Whether an address belongs to the device range. */
bool address_space_contains(uint64_t address);

#endif
