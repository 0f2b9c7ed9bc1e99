/*
 * What a pool holds of a device: pieces of 32 MiB, at their places in one range of addresses, in which its allocations lie. How
 * many there are is the pool's affair. Where holes between allocations keep more pieces apart than it holds, some allocations lie
 * in part where no piece is. Needs the driver lock.
 */
#ifndef GPUSIM_POOL_PIECES_H
#define GPUSIM_POOL_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POOL_PIECE_BYTES (32ull * 1024 * 1024)

struct pool_piece;

struct pool_pieces {
    uint64_t start, bytes;     /* the range; 0 before the first allocation, or where there is none to be had */
    struct pool_piece *pieces; /* by their places */
    size_t places, held;
};

/* An address in the range with so much room behind it; 0 when there is none. */
uint64_t pool_pieces_place(struct pool_pieces *pieces, int device, uint64_t bytes);

/* Takes so many bytes more, first where an allocation is to lie; all of them, or none. */
bool pool_pieces_grow(struct pool_pieces *pieces, int device, uint64_t more_bytes, uint64_t address, uint64_t bytes);

/* Gives so many bytes back, first those where no allocation lies. */
void pool_pieces_shrink(struct pool_pieces *pieces, int device, uint64_t less_bytes);

/* Gives the range back, when all pieces are. */
void pool_pieces_end(struct pool_pieces *pieces);

#endif
