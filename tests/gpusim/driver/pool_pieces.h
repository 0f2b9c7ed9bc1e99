/*
 * Device memory of a pool: pieces of 32 MiB at fixed positions of one address range, which contains the pool's allocations. The
 * pool decides how many pieces it holds. If gaps between allocations spread them over more positions than there are pieces, parts
 * of some allocations have no memory behind them. Needs the driver lock.
 */
#ifndef GPUSIM_POOL_PIECES_H
#define GPUSIM_POOL_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POOL_PIECE_BYTES (32ull * 1024 * 1024)

struct pool_piece;

struct pool_pieces {
    uint64_t start, bytes;     /* the range; 0 before the first allocation, or if none is available */
    struct pool_piece *pieces; /* by position */
    size_t places, held;
};

/* An address in the range with this many free bytes; 0 if there is none. */
uint64_t pool_pieces_place(struct pool_pieces *pieces, int device, uint64_t bytes);

/* Takes this many more bytes, first where the allocation is placed; all of them, or none. */
bool pool_pieces_grow(struct pool_pieces *pieces, int device, uint64_t more_bytes, uint64_t address, uint64_t bytes);

/* Gives this many bytes back, first those without allocations. */
void pool_pieces_shrink(struct pool_pieces *pieces, int device, uint64_t less_bytes);

/* Gives the range back; all pieces are given back before. */
void pool_pieces_end(struct pool_pieces *pieces);

#endif
