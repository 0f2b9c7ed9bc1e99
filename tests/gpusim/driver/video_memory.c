#include "video_memory.h"

#include "accounting.h"
#include "driver.h"
#include "requests.h"
#include "rm.h"

#define PAGE_BYTES 4096ull

bool video_memory_take(struct video_memory *memory, int device, uint64_t bytes, enum video_use use)
{
    if (!rm_is_on()) {
        *memory = (struct video_memory){.bytes = round_up(bytes, GRANULE_BYTES)};
        return accounting_occupy(device, memory->bytes);
    }
    struct rm_memory asked = {
        .class = CLASS_VIDEO_MEMORY, .flags = 0x1c101, .attr = use == VIDEO_LINEAR ? 0x18000000 : 0x38000000,
        .attr2 = 0x100005, .bytes = round_up(bytes, PAGE_BYTES)};
    uint32_t handle = rm_new_handle();
    if (!rm_take_memory(device, handle, &asked)) {
        rm_forget(handle);
        return false;
    }
    *memory = (struct video_memory){.object = handle, .bytes = asked.bytes};
    return true;
}

void video_memory_give(struct video_memory *memory, int device)
{
    if (rm_is_on()) {
        rm_give_memory(device, memory->object);
        accounting_give_up(memory->object);
    } else {
        accounting_vacate(device, memory->bytes);
    }
    *memory = (struct video_memory){0};
}

void video_memory_map(const struct video_memory *memory, uint64_t address)
{
    if (rm_is_on())
        rm_map(memory->object, address, memory->bytes, 0);
}

void video_memory_unmap(const struct video_memory *memory, uint64_t address)
{
    if (rm_is_on())
        rm_unmap(address, memory->bytes);
}
