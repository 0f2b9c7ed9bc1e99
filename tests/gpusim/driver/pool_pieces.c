#include "pool_pieces.h"

#include <stdlib.h>
#include <string.h>

#include "accounting.h"
#include "address_space.h"
#include "allocation.h"
#include "driver.h"
#include "rm.h"
#include "video_memory.h"

struct pool_piece {
    struct video_memory video; /* bytes 0: no memory at this position */
    bool fresh;                /* taken by the current growth */
};

static uint64_t address_of(const struct pool_pieces *pieces, size_t place)
{
    return pieces->start + place * POOL_PIECE_BYTES;
}

uint64_t pool_pieces_place(struct pool_pieces *pieces, int device, uint64_t bytes)
{
    if (!pieces->start) {
        pieces->bytes = round_up(ledger_usable_bytes(accounting_ledger(), device), POOL_PIECE_BYTES);
        pieces->start = address_space_take(pieces->bytes, GRANULE_BYTES);
    }
    return pieces->start ? allocation_hole(pieces->start, pieces->start + pieces->bytes, bytes) : 0;
}

static void make_places(struct pool_pieces *pieces, size_t places)
{
    if (places <= pieces->places)
        return;
    struct pool_piece *moved = driver_record(places * sizeof *moved);
    if (pieces->places)
        memcpy(moved, pieces->pieces, pieces->places * sizeof *moved);
    free(pieces->pieces);
    pieces->pieces = moved;
    pieces->places = places;
}

static void give(struct pool_pieces *pieces, int device, size_t place)
{
    struct pool_piece *piece = &pieces->pieces[place];
    if (rm_is_on() && pieces->start)
        rm_unmap_part(address_of(pieces, place), POOL_PIECE_BYTES);
    video_memory_give(&piece->video, device);
    pieces->held--;
}

static bool take(struct pool_pieces *pieces, int device, size_t place)
{
    struct pool_piece *piece = &pieces->pieces[place];
    if (!video_memory_take(&piece->video, device, POOL_PIECE_BYTES, VIDEO_MAPPABLE)) {
        piece->video = (struct video_memory){0};
        return false;
    }
    piece->fresh = true;
    pieces->held++;
    if (pieces->start)
        video_memory_map(&piece->video, address_of(pieces, place));
    return true;
}

/* Takes pieces at empty positions of [first, end) until `count` are taken; false if the device has too little left. */
static bool fill(struct pool_pieces *pieces, int device, size_t first, size_t end, size_t *count)
{
    for (size_t place = first; *count && place < end; place++) {
        if (pieces->pieces[place].video.bytes)
            continue;
        if (!take(pieces, device, place))
            return false;
        --*count;
    }
    return true;
}

/* Finishes a growth: keeps the new pieces, or gives them back. */
static void settle(struct pool_pieces *pieces, int device, bool stays)
{
    for (size_t place = 0; place < pieces->places; place++) {
        if (pieces->pieces[place].fresh && !stays)
            give(pieces, device, place);
        pieces->pieces[place].fresh = false;
    }
}

bool pool_pieces_grow(struct pool_pieces *pieces, int device, uint64_t more_bytes, uint64_t address, uint64_t bytes)
{
    size_t count = (size_t)(more_bytes / POOL_PIECE_BYTES);
    size_t first = 0, end = 0;
    if (pieces->start && address >= pieces->start && address < pieces->start + pieces->bytes) {
        first = (size_t)((address - pieces->start) / POOL_PIECE_BYTES);
        end = (size_t)((address + bytes - 1 - pieces->start) / POOL_PIECE_BYTES) + 1;
    }
    size_t needed = pieces->held + count;
    make_places(pieces, end > needed ? end : needed);
    bool taken = fill(pieces, device, first, end, &count) && fill(pieces, device, 0, pieces->places, &count);
    settle(pieces, device, taken);
    return taken;
}

void pool_pieces_shrink(struct pool_pieces *pieces, int device, uint64_t less_bytes)
{
    size_t count = (size_t)(less_bytes / POOL_PIECE_BYTES);
    for (int also_used = 0; also_used <= 1; also_used++) {
        for (size_t place = pieces->places; count && place-- > 0;) {
            bool is_used = pieces->start && allocation_overlaps(address_of(pieces, place), POOL_PIECE_BYTES);
            if (!pieces->pieces[place].video.bytes || (is_used && !also_used))
                continue;
            give(pieces, device, place);
            count--;
        }
    }
}

void pool_pieces_end(struct pool_pieces *pieces)
{
    if (pieces->start)
        address_space_give(pieces->start, pieces->bytes);
    free(pieces->pieces);
    *pieces = (struct pool_pieces){0};
}
