/* Requests of up to 1 MiB share 2 MiB slabs of device memory, in units of 512 bytes. Needs the driver lock. */
#ifndef GPUSIM_SMALL_BLOCKS_H
#define GPUSIM_SMALL_BLOCKS_H

#include <stdint.h>

#define SMALL_BLOCK_LIMIT_BYTES (1024ull * 1024)

/* The address of a block; 0 if it needs a new slab and the device has too little left. */
uint64_t small_block_take(int device, uint64_t bytes);

/* The kernel driver's object that contains a block; 0 without one. */
uint32_t small_block_object(uint64_t address);

/* Frees a block, and gives its slab back to the device if it was the last block. */
void small_block_give(uint64_t address, uint64_t bytes);

#endif
