#include "resource_manager.h"

#include <stdio.h>
#include <stdlib.h>

#include "objects.h"
#include "requests.h"

#define EXPORTED __attribute__((visibility("default")))

static struct device_machine machine;
static uint64_t charged_bytes[8];
static struct device_answer decided;
static bool is_decided;

/* GPUSIM_RM_FAIL: index of the video-memory request that fails, counted from 1, and the kind of failure. */
static unsigned long failing, asked_for_memory;
static bool fails_by_status;

EXPORTED void gpusim_device_load(const struct device_machine *loaded)
{
    machine = *loaded;
    const char *fail = getenv("GPUSIM_RM_FAIL");
    if (!fail)
        return;
    fails_by_status = sscanf(fail, "status51:%lu", &failing) == 1;
    if (!fails_by_status && sscanf(fail, "rax:%lu", &failing) != 1)
        failing = 0;
}

EXPORTED void gpusim_device_answer(const struct device_answer *answer)
{
    decided = *answer;
    is_decided = true;
}

EXPORTED uint64_t gpusim_device_charged_bytes(int gpu)
{
    return charged_bytes[gpu];
}

const struct device_machine *manager_machine(void)
{
    return &machine;
}

static void gone(const struct object *object)
{
    if (!object->charged_bytes)
        return;
    charged_bytes[object->gpu] -= object->charged_bytes;
    machine.give(object->gpu, object->charged_bytes);
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    uint64_t missing = (unit - bytes % unit) % unit;
    return bytes > UINT64_MAX - missing ? UINT64_MAX : bytes + missing;
}

/* Rounds up to pages of 2 MiB unless the request sets a page size; host memory has 4 KiB pages. */
static uint64_t granted_bytes(const struct request *request)
{
    if (request->class == CLASS_HOST_MEMORY)
        return round_up(request->asked_bytes, 4096);
    switch (request->attr & ATTR_PAGE_SIZE) {
    case ATTR_PAGE_4K: return round_up(request->asked_bytes, 4096);
    case ATTR_PAGE_64K: return round_up(request->asked_bytes, 65536);
    default: return round_up(request->asked_bytes, 2u << 20);
    }
}

static uint32_t granted_attr(const struct request *request)
{
    uint32_t kept = request->attr & ~(uint32_t)(ATTR_PHYSICALITY | ATTR_PAGE_SIZE);
    if (request->class == CLASS_HOST_MEMORY)
        return kept | ATTR_SCATTERED | ATTR_PAGE_4K;
    uint32_t page = request->attr & ATTR_PAGE_SIZE;
    return kept | ATTR_CONTIGUOUS | (page ? page : ATTR_PAGE_2M);
}

/* NVML charges a process for objects of this class, except those in host memory or with addresses only. */
static bool is_charged(const struct request *request)
{
    return request->class == CLASS_VIDEO_MEMORY && !(request->attr & ATTR_LOCATION) && !(request->flags & FLAG_VIRTUAL);
}

static bool is_memory(uint32_t class)
{
    return class == CLASS_VIDEO_MEMORY || class == CLASS_HOST_MEMORY;
}

static int gpu_of_device(uint32_t instance)
{
    for (int gpu = 0; gpu < machine.gpus; gpu++)
        if (device_instance(&machine, gpu) == instance)
            return gpu;
    return NO_GPU;
}

/* On a MIG GPU, the device allocates from the instance to which the client has subscribed. */
static void subscribe(struct object *object, const void *parameters)
{
    int gpu = (int)(get32(parameters, INSTANCE_AT_ID) - FIRST_GPU_INSTANCE);
    if (gpu < 0 || gpu >= machine.gpus)
        return;
    for (; object && object->class != CLASS_CLIENT; object = object->parent)
        object->gpu = gpu;
}

static uint32_t charge(struct request *request, struct object *object)
{
    if (object->gpu == NO_GPU)
        return STATUS_INVALID_DEVICE;
    if (!machine.take(object->gpu, request->granted_bytes))
        return STATUS_NO_MEMORY;
    object->charged_bytes = request->granted_bytes;
    charged_bytes[object->gpu] += request->granted_bytes;
    return STATUS_OK;
}

/* Applies the effects of the new object's class. */
static uint32_t furnish(struct request *request, struct object *object, const void *parameters)
{
    if (request->class == CLASS_DEVICE) {
        object->gpu = gpu_of_device(parameters ? get32(parameters, DEVICE_AT_ID) : 0);
        return object->gpu == NO_GPU ? STATUS_INVALID_DEVICE : STATUS_OK;
    }
    if (request->class == CLASS_GPU_INSTANCE && parameters)
        subscribe(object, parameters);
    return is_charged(request) ? charge(request, object) : STATUS_OK;
}

static uint32_t make(struct request *request, const void *parameters)
{
    bool is_client = request->class == CLASS_CLIENT;
    if (is_client && !request->object)
        request->object = machine.client();
    if (is_client)
        request->client = request->object;
    struct object *parent = is_client ? NULL : object_find(request->client, request->parent);
    if (!is_client && !object_find(request->client, request->client))
        return STATUS_INVALID_CLIENT;
    if (!is_client && !parent)
        return STATUS_INVALID_PARENT;
    if (object_find(request->client, request->object))
        return STATUS_DUPLICATE;
    if (is_memory(request->class) && !request->asked_bytes)
        return STATUS_INVALID_ARGUMENT;
    struct object *object = object_add(request->client, request->object, request->class, parent);
    if (!object)
        return STATUS_NO_MEMORY;
    uint32_t status = furnish(request, object, parameters);
    if (status != STATUS_OK)
        object_remove(object, gone);
    return status;
}

static bool is_to_fail(const struct request *request)
{
    return is_charged(request) && ++asked_for_memory == failing;
}

void manager_allocate(struct request *request, const void *parameters)
{
    uint32_t attr = request->attr;
    request->granted_bytes = is_memory(request->class) ? granted_bytes(request) : request->asked_bytes;
    request->attr = is_memory(request->class) ? granted_attr(request) : request->attr;
    uint32_t decided_status = STATUS_OK;
    if (is_decided) {
        request->object = decided.object;
        request->granted_bytes = decided.bytes;
        request->attr = decided.attr;
        decided_status = decided.status;
        is_decided = false;
    }
    if (is_to_fail(request)) {
        request->answer = fails_by_status ? 0 : -1;
        decided_status = STATUS_NO_MEMORY;
    }
    request->status = decided_status == STATUS_OK ? make(request, parameters) : decided_status;
    if (request->status != STATUS_OK) {
        request->granted_bytes = request->asked_bytes;
        request->attr = attr;
    }
}

/* Succeeds for unknown objects, as the real driver does. */
void manager_free(struct request *request)
{
    struct object *object = object_find(request->client, request->object);
    if (object)
        object_remove(object, gone);
    request->status = STATUS_OK;
}

/* Objects of another process cannot be checked here. */
static bool source_is_possible(const struct request *request)
{
    return !object_find(request->source_client, request->source_client)
        || object_find(request->source_client, request->source_object);
}

void manager_duplicate(struct request *request)
{
    struct object *parent = object_find(request->client, request->parent);
    if (!parent)
        request->status = STATUS_INVALID_PARENT;
    else if (!source_is_possible(request))
        request->status = STATUS_NOT_FOUND;
    else if (object_find(request->client, request->object))
        request->status = STATUS_DUPLICATE;
    else
        request->status =
            object_add(request->client, request->object, CLASS_VIDEO_MEMORY, parent) ? STATUS_OK : STATUS_NO_MEMORY;
}

static uint32_t answer_uuid(int gpu, uint8_t *parameters)
{
    const uint8_t *uuid = machine.uuid(gpu);
    if (get32(parameters, GID_AT_FLAGS) & GID_FLAG_BINARY) {
        put32(parameters, GID_AT_LENGTH, 16);
        memcpy(parameters + GID_AT_DATA, uuid, 16);
        return STATUS_OK;
    }
    char *text = (char *)parameters + GID_AT_DATA;
    int length = sprintf(text, "GPU");
    for (int index = 0; index < 16; index++) {
        const char *dash = index == 0 || index == 4 || index == 6 || index == 8 || index == 10 ? "-" : "";
        length += sprintf(text + length, "%s%02x", dash, uuid[index]);
    }
    put32(parameters, GID_AT_LENGTH, (uint32_t)length + 1);
    return STATUS_OK;
}

static uint32_t answer_instance(uint8_t *parameters)
{
    for (int gpu = 0; gpu < machine.gpus; gpu++) {
        if (device_gpu_id(gpu) == get32(parameters, ID_AT_GPU)) {
            put32(parameters, ID_AT_DEVICE, device_instance(&machine, gpu));
            return STATUS_OK;
        }
    }
    return STATUS_INVALID_ARGUMENT;
}

void manager_control(struct request *request, void *parameters)
{
    struct object *object = object_find(request->client, request->object);
    if (!object)
        request->status = STATUS_NOT_FOUND;
    else if (request->class == CONTROL_GID_INFO && parameters)
        request->status = object->gpu == NO_GPU ? STATUS_INVALID_DEVICE : answer_uuid(object->gpu, parameters);
    else if (request->class == CONTROL_ID_INFO && parameters)
        request->status = answer_instance(parameters);
    else
        request->status = STATUS_OK;
}

void manager_map(struct request *request)
{
    request->status = object_find(request->client, request->object) ? STATUS_OK : STATUS_NOT_FOUND;
}
