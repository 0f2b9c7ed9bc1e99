#include "rm.h"

#include <stdlib.h>

#include "accounting.h"
#include "device_library.h"
#include "ledger.h"
#include "rm_files.h"
#include "settings.h"

#define FIRST_HANDLE 0x5c000001u

static uint32_t client;
static struct {
    uint32_t device, subdevice;
} gpus[LEDGER_DEVICES];

/* Freed handles; the last one freed is reused first. */
static uint32_t *free_handles;
static size_t free_count, free_room;
static uint32_t next_handle = FIRST_HANDLE;

uint32_t rm_client(void)
{
    return client;
}

bool rm_is_on(void)
{
    return rm_files_are_open();
}

uint32_t rm_parent(int gpu, enum rm_parent parent)
{
    return parent == RM_DEVICE ? gpus[gpu].device : gpus[gpu].subdevice;
}

uint32_t rm_new_handle(void)
{
    return free_count ? free_handles[--free_count] : next_handle++;
}

void rm_forget(uint32_t handle)
{
    if (free_count == free_room) {
        size_t room = free_room ? free_room * 2 : 256;
        uint32_t *moved = realloc(free_handles, room * sizeof *moved);
        if (!moved)
            return;
        free_handles = moved;
        free_room = room;
    }
    free_handles[free_count++] = handle;
}

static void put_object(uint8_t *argument, uint32_t parent, uint32_t object, uint32_t class)
{
    put32(argument, RM_AT_CLIENT, client);
    put32(argument, RM_AT_PARENT, parent);
    put32(argument, RM_AT_OBJECT, object);
    put32(argument, RM_AT_CLASS, class);
}

/* Returns the new object's handle as granted, 0 if the request was refused. */
static uint32_t allocate(uint32_t parent, uint32_t object, uint32_t class, void *parameters)
{
    const struct rm_layout *layout = rm_layout();
    uint8_t argument[RM_ALLOC_MOST_BYTES] = {0};
    put_object(argument, parent, object, class);
    put_pointer(argument, ALLOC_AT_PARAMETERS, parameters);
    bool answered = rm_send(DEVICE_CONTROL, RM_ALLOC, argument, layout->alloc_bytes);
    bool granted = answered && get32(argument, layout->alloc_at_status) == STATUS_OK;
    return granted ? get32(argument, RM_AT_OBJECT) : 0;
}

uint32_t rm_make(uint32_t parent, uint32_t class, void *parameters)
{
    uint32_t handle = rm_new_handle();
    uint32_t object = allocate(parent, handle, class, parameters);
    if (!object)
        rm_forget(handle);
    return object;
}

static bool take_from_heap(int gpu, uint32_t handle, struct rm_memory *memory)
{
    uint8_t argument[RM_HEAP_BYTES] = {0};
    put_object(argument, gpus[gpu].device, 0, 0);
    put32(argument, HEAP_AT_FUNCTION, HEAP_ALLOC_SIZE);
    put32(argument, HEAP_AT_OBJECT, handle);
    put32(argument, HEAP_AT_FLAGS, memory->flags);
    put32(argument, HEAP_AT_ATTR, memory->attr);
    put64(argument, HEAP_AT_SIZE, memory->bytes);
    put32(argument, HEAP_AT_ATTR2, memory->attr2);
    bool answered = rm_send(DEVICE_CONTROL, RM_HEAP, argument, sizeof argument);
    memory->bytes = get64(argument, HEAP_AT_SIZE);
    return answered && get32(argument, HEAP_AT_STATUS) == STATUS_OK;
}

bool rm_take_memory(int gpu, uint32_t handle, struct rm_memory *memory)
{
    if (rm_uses_heap() && memory->class == CLASS_VIDEO_MEMORY)
        return take_from_heap(gpu, handle, memory);
    uint8_t parameters[MEMORY_PARAMETERS_BYTES] = {0};
    put32(parameters, MEMORY_AT_FLAGS, memory->flags);
    put32(parameters, MEMORY_AT_ATTR, memory->attr);
    put32(parameters, MEMORY_AT_ATTR2, memory->attr2);
    put64(parameters, MEMORY_AT_SIZE, memory->bytes);
    bool granted = allocate(gpus[gpu].device, handle, memory->class, parameters) != 0;
    memory->bytes = get64(parameters, MEMORY_AT_SIZE);
    return granted;
}

uint32_t rm_pin(int gpu, uint64_t address, uint64_t bytes)
{
    uint8_t argument[RM_ALLOC_MEMORY_BYTES] = {0};
    uint32_t handle = rm_new_handle();
    put_object(argument, gpus[gpu].device, handle, CLASS_PINNED_MEMORY);
    put32(argument, ALLOC_MEMORY_AT_FLAGS, 0x40001010);
    put64(argument, ALLOC_MEMORY_AT_ADDRESS, address);
    put64(argument, ALLOC_MEMORY_AT_LIMIT, bytes - 1);
    bool answered = rm_send(DEVICE_GPU, RM_ALLOC_MEMORY, argument, sizeof argument);
    if (answered && get32(argument, ALLOC_MEMORY_AT_STATUS) == STATUS_OK)
        return handle;
    rm_forget(handle);
    return 0;
}

uint32_t rm_duplicate(int gpu, uint32_t source_client, uint32_t source_object)
{
    uint8_t argument[RM_DUP_BYTES] = {0};
    uint32_t handle = rm_new_handle();
    put_object(argument, gpus[gpu].device, handle, source_client);
    put32(argument, DUP_AT_SOURCE_OBJECT, source_object);
    bool answered = rm_send(DEVICE_CONTROL, RM_DUP, argument, sizeof argument);
    if (answered && get32(argument, DUP_AT_STATUS) == STATUS_OK)
        return handle;
    rm_forget(handle);
    return 0;
}

void rm_free_kept(uint32_t parent, uint32_t object)
{
    uint8_t argument[RM_FREE_BYTES] = {0};
    put_object(argument, parent, object, 0);
    rm_send(DEVICE_CONTROL, RM_FREE, argument, sizeof argument);
}

void rm_free(uint32_t parent, uint32_t object)
{
    rm_free_kept(parent, object);
    rm_forget(object);
}

void rm_give_memory(int gpu, uint32_t object)
{
    if (!rm_uses_heap()) {
        rm_free(gpus[gpu].device, object);
        return;
    }
    uint8_t argument[RM_HEAP_BYTES] = {0};
    put_object(argument, gpus[gpu].device, 0, 0);
    put32(argument, HEAP_AT_FUNCTION, HEAP_FREE);
    put32(argument, HEAP_AT_OBJECT, object);
    rm_send(DEVICE_CONTROL, RM_HEAP, argument, sizeof argument);
    rm_forget(object);
}

static void control(uint32_t object, uint32_t command, void *parameters, uint32_t bytes)
{
    uint8_t argument[RM_CONTROL_BYTES] = {0};
    put32(argument, RM_AT_CLIENT, client);
    put32(argument, CONTROL_AT_OBJECT, object);
    put32(argument, CONTROL_AT_COMMAND, command);
    put_pointer(argument, CONTROL_AT_PARAMETERS, parameters);
    put32(argument, CONTROL_AT_PARAMETERS_BYTES, bytes);
    rm_send(DEVICE_CONTROL, RM_CONTROL, argument, sizeof argument);
}

void rm_ask_uuid(int gpu)
{
    uint8_t parameters[GID_PARAMETERS_BYTES] = {0};
    put32(parameters, GID_AT_FLAGS, GID_FLAG_BINARY);
    control(gpus[gpu].subdevice, CONTROL_GID_INFO, parameters, sizeof parameters);
}

static uint32_t ask_instance(int gpu)
{
    uint8_t parameters[ID_PARAMETERS_BYTES] = {0};
    put32(parameters, ID_AT_GPU, device_gpu_id(accounting_ledger()->mig ? 0 : gpu));
    control(client, CONTROL_ID_INFO, parameters, sizeof parameters);
    return get32(parameters, ID_AT_DEVICE);
}

/* ---- addresses ---- */

void rm_map(uint32_t object, uint64_t address, uint64_t bytes, uint64_t offset_bytes)
{
    static uint8_t argument[UVM_MAP_MOST_BYTES];
    put64(argument, UVM_AT_BASE, address);
    put64(argument, UVM_AT_LENGTH, bytes);
    put64(argument, UVM_AT_OFFSET, offset_bytes);
    put32(argument, rm_layout()->map_at_client, client);
    put32(argument, rm_layout()->map_at_client + 4, object);
    uvm_send(UVM_MAP_EXTERNAL, argument);
}

static void unmap(uint32_t number, uint64_t address, uint64_t bytes)
{
    uint8_t argument[24] = {0};
    put64(argument, UVM_AT_BASE, address);
    put64(argument, UVM_AT_LENGTH, bytes);
    uvm_send(number, argument);
}

void rm_unmap(uint64_t address, uint64_t bytes)
{
    unmap(UVM_FREE, address, bytes);
}

void rm_unmap_part(uint64_t address, uint64_t bytes)
{
    unmap(UVM_UNMAP_EXTERNAL, address, bytes);
}

/* ---- start ---- */

/* Creates the GPU's objects and, on a MIG GPU, the subscription to the one instance that the process sees. */
static bool start_gpu(int gpu)
{
    uint8_t device[DEVICE_PARAMETERS_BYTES] = {0};
    put32(device, DEVICE_AT_ID, ask_instance(gpu));
    gpus[gpu].device = rm_make(client, CLASS_DEVICE, device);
    uint8_t subdevice[4] = {0};
    gpus[gpu].subdevice = rm_make(gpus[gpu].device, CLASS_SUBDEVICE, subdevice);
    if (accounting_ledger()->mig) {
        uint8_t instance[INSTANCE_PARAMETERS_BYTES] = {0};
        put32(instance, INSTANCE_AT_ID, FIRST_GPU_INSTANCE + (uint32_t)gpu);
        uint32_t subscription = rm_make(gpus[gpu].subdevice, CLASS_GPU_INSTANCE, instance);
        put32(instance, INSTANCE_AT_ID, 0);
        rm_make(subscription, CLASS_COMPUTE_INSTANCE, instance);
    }
    rm_ask_uuid(gpu);
    uint8_t registration[UVM_OTHER_BYTES] = {0};
    memcpy(registration, rm_uuid(gpu), 16);
    uvm_send(UVM_REGISTER_GPU, registration);
    return gpus[gpu].subdevice && rm_make(gpus[gpu].device, CLASS_ADDRESS_SPACE, NULL);
}

bool rm_open(void)
{
    return rm_files_open();
}

bool rm_start(const int *visible, int count)
{
    if (settings_is("GPUSIM_RM", "off"))
        return true;
    if (!rm_open())
        return false;
    /* The first client is only used to query the version. */
    client = allocate(0, 0, CLASS_CLIENT, NULL);
    rm_free_kept(client, client);
    client = allocate(0, 0, CLASS_CLIENT, NULL);
    if (!client)
        return false;
    /* The real driver frees a handle that it has not yet created. */
    rm_free_kept(client, FIRST_HANDLE + 1);
    for (int index = 0; index < count; index++)
        if (!start_gpu(visible[index]))
            return false;
    return true;
}
