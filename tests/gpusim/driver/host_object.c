#include "host_object.h"

#include "requests.h"
#include "rm.h"

uint32_t host_object_take(int device, uint64_t bytes)
{
    if (!rm_is_on())
        return 0;
    struct rm_memory asked = {
        .class = CLASS_HOST_MEMORY, .flags = 0xc001, .attr = 0x3a000000, .attr2 = 9, .bytes = bytes};
    uint32_t handle = rm_new_handle();
    if (rm_take_memory(device, handle, &asked))
        return handle;
    rm_forget(handle);
    return 0;
}

uint32_t host_object_pin(int device, uint64_t address, uint64_t bytes)
{
    if (!rm_is_on())
        return 0;
    uint32_t object = rm_pin(device, address, bytes);
    if (object)
        rm_map(object, address, bytes, 0);
    return object;
}

void host_object_unpin(int device, uint32_t object, uint64_t address, uint64_t bytes)
{
    if (object)
        rm_unmap(address, bytes);
    host_object_give(device, object);
}

void host_object_give(int device, uint32_t object)
{
    if (object)
        rm_free(rm_parent(device, RM_DEVICE), object);
}
