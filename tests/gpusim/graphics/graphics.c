/*
 * A graphics library of the driver: it requests memory from the simulated kernel driver through its own stub, with its own client, as
 * OpenGL's and Vulkan's libraries do. libcuda must have loaded the device library before.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>

#include "device_library.h"
#include "requests.h"

#define EXPORTED __attribute__((visibility("default")))

enum { DEVICE = 0xbe000001, SUBDEVICE, FIRST_MEMORY };

static int file = -1;
static uint32_t client;
static uint32_t taken;

static bool ask(uint32_t number, void *argument, uint32_t bytes, uint32_t at_status)
{
    return ioctl(file, RM_REQUEST(number, bytes), argument) == 0 && get32(argument, at_status) == STATUS_OK;
}

/* Returns the object's handle as granted; 0 if refused. */
static uint32_t make(uint32_t parent, uint32_t object, uint32_t class, void *parameters)
{
    uint8_t argument[48] = {0};
    put32(argument, RM_AT_CLIENT, client);
    put32(argument, RM_AT_PARENT, parent);
    put32(argument, RM_AT_OBJECT, object);
    put32(argument, RM_AT_CLASS, class);
    put_pointer(argument, ALLOC_AT_PARAMETERS, parameters);
    return ask(RM_ALLOC, argument, sizeof argument, 40) ? get32(argument, RM_AT_OBJECT) : 0;
}

/* Opens the GPU with this device number. */
static bool start(uint32_t instance)
{
    file = gpusim_device_open(DEVICE_CONTROL);
    if (file < 0)
        return false;
    client = make(0, 0, CLASS_CLIENT, NULL);
    uint8_t device[DEVICE_PARAMETERS_BYTES] = {0}, subdevice[4] = {0}, uuid[GID_PARAMETERS_BYTES] = {0};
    put32(device, DEVICE_AT_ID, instance);
    put32(uuid, GID_AT_FLAGS, GID_FLAG_BINARY);
    uint8_t control[RM_CONTROL_BYTES] = {0};
    put32(control, RM_AT_CLIENT, client);
    put32(control, CONTROL_AT_OBJECT, SUBDEVICE);
    put32(control, CONTROL_AT_COMMAND, CONTROL_GID_INFO);
    put_pointer(control, CONTROL_AT_PARAMETERS, uuid);
    put32(control, CONTROL_AT_PARAMETERS_BYTES, sizeof uuid);
    return client && make(client, DEVICE, CLASS_DEVICE, device) && make(DEVICE, SUBDEVICE, CLASS_SUBDEVICE, subdevice)
        && ask(RM_CONTROL, control, sizeof control, CONTROL_AT_STATUS);
}

/* Takes this much memory of the GPU with this device number, until the process exits. Returns whether it was granted. */
EXPORTED bool graphics_take(uint32_t instance, uint64_t bytes)
{
    if (file < 0 && !start(instance))
        return false;
    uint8_t parameters[MEMORY_PARAMETERS_BYTES] = {0};
    put32(parameters, MEMORY_AT_ATTR, ATTR_CONTIGUOUS | ATTR_PAGE_2M);
    put64(parameters, MEMORY_AT_SIZE, bytes);
    return make(DEVICE, FIRST_MEMORY + taken++, CLASS_VIDEO_MEMORY, parameters) != 0;
}
