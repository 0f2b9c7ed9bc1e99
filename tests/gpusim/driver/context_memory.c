#include "context_memory.h"

#include <stdlib.h>

#include "accounting.h"
#include "context_objects.h"
#include "driver.h"
#include "requests.h"
#include "rm.h"
#include "settings.h"
#include "video_memory.h"

/* Size of a function's code, and of each piece for the first streams. */
#define EXTRA_BYTES (2 * MEBIBYTE)
enum { STREAM_PIECES = 35 };

/* An object of a context. */
struct held {
    struct video_memory video; /* bytes 0: no video memory */
    uint32_t object, parent;
    uint64_t address; /* address of the mapped video memory */
    bool goes_with_parent;
};

struct context_memory {
    int device;
    struct held *held;
    size_t count;
    uint64_t bytes; /* of video memory, in total */
    size_t local;   /* index of the piece for local memory; SIZE_MAX without one */
    uint64_t local_bytes_per_thread;
    bool has_streams;
};

static uint64_t overhead_bytes;
static bool takes_extras;

void context_memory_start(void)
{
    overhead_bytes = settings_number("GPUSIM_CONTEXT_MB", CONTEXT_MEBIBYTES) * MEBIBYTE;
    takes_extras = settings_number("GPUSIM_RM_EXTRAS", 0) != 0;
}

static struct held *add(struct context_memory *memory, struct held held)
{
    struct held *moved = realloc(memory->held, (memory->count + 1) * sizeof *moved);
    if (!moved)
        abort();
    memory->held = moved;
    moved[memory->count] = held;
    return &moved[memory->count++];
}

static void resize(struct context_memory *memory, int64_t more_bytes)
{
    memory->bytes += (uint64_t)more_bytes;
    accounting_context_resized(memory->device, more_bytes);
}

/* Uses the address range of the real driver, which no memory of the process occupies. The memory is never written. */
static void map(struct held *held)
{
    static uint64_t next_address = 0x200000000ull;
    held->address = next_address;
    next_address += round_up(held->video.bytes, GRANULE_BYTES);
    video_memory_map(&held->video, held->address);
}

static bool add_video(struct context_memory *memory, struct rm_memory asked)
{
    uint32_t handle = rm_new_handle();
    if (!rm_take_memory(memory->device, handle, &asked)) {
        rm_forget(handle);
        return false;
    }
    struct held *held = add(memory, (struct held){.video = {.object = handle, .bytes = asked.bytes}});
    map(held);
    resize(memory, (int64_t)asked.bytes);
    return true;
}

/*
 * A context of another size than the real one consists of pieces in the same proportions, in whole small pages; the last piece
 * takes the rest, so that the sum equals the setting.
 */
static struct rm_memory scaled(const struct context_object *object, uint64_t left_bytes, bool is_last)
{
    struct rm_memory asked = {
        .class = object->class, .flags = object->flags, .attr = object->attr, .attr2 = object->attr2,
        .bytes = object->asked_bytes};
    if (overhead_bytes == CONTEXT_MEBIBYTES * MEBIBYTE)
        return asked;
    uint64_t granted_bytes = round_up(object->asked_bytes, GRANULE_BYTES);
    /* Uses MiB, so that the product of two sizes cannot overflow. */
    uint64_t bytes = granted_bytes / KIBIBYTE * (overhead_bytes / MEBIBYTE) / CONTEXT_MEBIBYTES * KIBIBYTE;
    bytes -= bytes % 4096;
    asked.attr = (object->attr & ~(uint32_t)ATTR_PAGE_SIZE) | ATTR_PAGE_4K;
    asked.bytes = is_last || bytes > left_bytes ? left_bytes : bytes;
    return asked;
}

static bool add_object(struct context_memory *memory, const struct context_object *object, uint32_t groups[2])
{
    const uint32_t parents[] = {
        rm_parent(memory->device, RM_DEVICE), rm_parent(memory->device, RM_SUBDEVICE), groups[0], groups[1]};
    struct held held = {.parent = parents[object->below], .goes_with_parent = object->below >= BELOW_GROUP};
    if (object->class == CLASS_PINNED_MEMORY) {
        held.object = rm_pin(memory->device, 0, object->asked_bytes);
    } else if (object->class == CLASS_HOST_MEMORY) {
        struct rm_memory asked = {
            .class = object->class, .flags = object->flags, .attr = object->attr, .attr2 = object->attr2,
            .bytes = object->asked_bytes};
        held.object = rm_new_handle();
        if (!rm_take_memory(memory->device, held.object, &asked))
            return false;
    } else {
        held.object = rm_make(held.parent, object->class, NULL);
    }
    if (object->class == CLASS_GROUP)
        groups[0] = held.object;
    if (object->class == CLASS_CHANNEL)
        groups[1] = held.object;
    add(memory, held);
    return held.object != 0;
}

static bool make_objects(struct context_memory *memory)
{
    uint32_t groups[2] = {0, 0};
    for (size_t index = 0; index < context_object_count; index++) {
        const struct context_object *object = &context_objects[index];
        bool is_last = index + 1 == context_object_count;
        if (object->class != CLASS_VIDEO_MEMORY) {
            if (!add_object(memory, object, groups))
                return false;
            continue;
        }
        struct rm_memory asked = scaled(object, overhead_bytes - memory->bytes, is_last);
        if (asked.bytes && !add_video(memory, asked))
            return false;
        if (asked.bytes && is_last)
            memory->local = memory->count - 1;
    }
    return true;
}

struct context_memory *context_memory_take(int device)
{
    struct context_memory *memory = driver_record(sizeof *memory);
    memory->device = device;
    memory->local = SIZE_MAX;
    memory->local_bytes_per_thread = LOCAL_BYTES_PER_THREAD;
    bool taken;
    if (rm_is_on()) {
        rm_ask_uuid(device);
        taken = make_objects(memory);
    } else {
        taken = accounting_occupy(device, overhead_bytes);
        if (taken)
            resize(memory, (int64_t)overhead_bytes);
    }
    if (taken)
        return memory;
    context_memory_give(memory);
    return NULL;
}

static void drop(struct context_memory *memory, struct held *held)
{
    if (held->goes_with_parent) {
        rm_forget(held->object);
    } else if (!held->video.bytes) {
        rm_free(held->parent, held->object);
    } else {
        video_memory_unmap(&held->video, held->address);
        resize(memory, -(int64_t)held->video.bytes);
        video_memory_give(&held->video, memory->device);
    }
}

void context_memory_give(struct context_memory *memory)
{
    while (memory->count)
        drop(memory, &memory->held[--memory->count]);
    /* Without a kernel driver there is only one total. */
    if (memory->bytes) {
        accounting_vacate(memory->device, memory->bytes);
        resize(memory, -(int64_t)memory->bytes);
    }
    free(memory->held);
    free(memory);
}

/* ---- memory taken on use ---- */

static bool add_extra(struct context_memory *memory)
{
    return add_video(memory, (struct rm_memory){
        .class = CLASS_VIDEO_MEMORY, .flags = 0x1c101, .attr = 0x18000000, .attr2 = 0x100005, .bytes = EXTRA_BYTES});
}

bool context_memory_has_extras(void)
{
    return takes_extras && rm_is_on();
}

bool context_memory_add_code(struct context_memory *memory)
{
    return !context_memory_has_extras() || add_extra(memory);
}

bool context_memory_add_streams(struct context_memory *memory)
{
    if (!context_memory_has_extras() || memory->has_streams)
        return true;
    memory->has_streams = true;
    for (int piece = 0; piece < STREAM_PIECES; piece++)
        if (!add_extra(memory))
            return false;
    return true;
}

/* Frees the piece for local memory and takes a larger one under the same handle; if that fails, no piece is left. */
static bool replace_local(struct context_memory *memory, uint64_t bytes)
{
    struct held *held = &memory->held[memory->local];
    uint32_t handle = held->video.object;
    video_memory_unmap(&held->video, held->address);
    rm_free_kept(rm_parent(memory->device, RM_DEVICE), handle);
    resize(memory, -(int64_t)held->video.bytes);
    struct rm_memory asked = {
        .class = CLASS_VIDEO_MEMORY, .flags = 0x1c101, .attr = 0x18000000, .attr2 = 0x100005, .bytes = bytes};
    if (!rm_take_memory(memory->device, handle, &asked)) {
        *held = (struct held){.object = handle, .goes_with_parent = true};
        memory->local = SIZE_MAX;
        return false;
    }
    held->video.bytes = asked.bytes;
    map(held);
    resize(memory, (int64_t)asked.bytes);
    return true;
}

bool context_memory_fit_local(struct context_memory *memory, uint64_t bytes_per_thread)
{
    if (!context_memory_has_extras() || memory->local == SIZE_MAX || bytes_per_thread <= memory->local_bytes_per_thread)
        return true;
    memory->local_bytes_per_thread = bytes_per_thread;
    return replace_local(memory, RESIDENT_THREADS * bytes_per_thread);
}
