#include <stdio.h>

#include "commands.h"
#include "driver.h"

enum { MOST_DEVICES = 8 };

static void run_init(struct call *call)
{
    call_result(call, driver.init((unsigned)call_number(call, 1, 0)));
}

/* The primary context of a device, retained once by this process. */
static CUresult primary(CUdevice ordinal, CUcontext *context)
{
    static CUcontext retained[MOST_DEVICES];
    bool known = ordinal >= 0 && ordinal < MOST_DEVICES && retained[ordinal];
    CUresult result = known ? CUDA_SUCCESS : driver.primary_retain(context, ordinal);
    if (result == CUDA_SUCCESS && !known)
        retained[ordinal] = *context;
    if (result == CUDA_SUCCESS)
        *context = retained[ordinal];
    return result;
}

static void run_device(struct call *call)
{
    CUcontext context;
    CUresult result = driver.init(0);
    if (result == CUDA_SUCCESS)
        result = primary((CUdevice)call_number(call, 1, 0), &context);
    if (result == CUDA_SUCCESS)
        result = driver.context_set(context);
    call_result(call, result);
}

static void run_primary(struct call *call)
{
    CUdevice ordinal = (CUdevice)call_number(call, 2, 0);
    CUcontext context = NULL;
    if (call_is(call, 1, "retain"))
        call_result(call, driver.primary_retain(&context, ordinal));
    else if (call_is(call, 1, "release"))
        call_result(call, driver.primary_release(ordinal));
    else if (call_is(call, 1, "reset"))
        call_result(call, driver.primary_reset(ordinal));
    else
        call_fail(call, "primary retain|release|reset DEVICE");
}

static void run_reset(struct call *call)
{
    call_result(call, driver.primary_reset((CUdevice)call_number(call, 1, 0)));
}

/* ctx create DEVICE as NAME [v2|v3|v4] */
static void create_context(struct call *call)
{
    CUdevice ordinal = (CUdevice)call_number(call, 2, 0);
    CUcontext context = NULL;
    CUresult result = driver.init(0);
    if (result != CUDA_SUCCESS)
        call_result(call, result);
    else if (call_is(call, 5, "v3"))
        result = driver.context_create_v3(&context, NULL, 0, 0, ordinal);
    else if (call_is(call, 5, "v4"))
        result = driver.context_create_v4(&context, NULL, 0, ordinal);
    else
        result = driver.context_create_v2(&context, 0, ordinal);
    call_result_variable(call, result, call_word(call, 4), (uint64_t)context);
}

static void run_context(struct call *call)
{
    CUcontext context = NULL;
    if (call_is(call, 1, "create") && call_is(call, 3, "as") && call->count > 4)
        create_context(call);
    else if (call_is(call, 1, "pop"))
        call_result(call, driver.context_pop(&context));
    else if (call_is(call, 1, "none"))
        call_result(call, driver.context_set(NULL));
    else if (call_is(call, 1, "destroy"))
        call_result(call, driver.context_destroy((CUcontext)call_number(call, 2, 0)));
    else if (call_is(call, 1, "set"))
        call_result(call, driver.context_set((CUcontext)call_number(call, 2, 0)));
    else if (call_is(call, 1, "push"))
        call_result(call, driver.context_push((CUcontext)call_number(call, 2, 0)));
    else
        call_fail(call, "ctx create DEVICE as NAME [v2|v3|v4], ctx destroy|set|push NAME, ctx pop, ctx none");
}

/* green NAME DEVICE: creates a green context and makes it current */
static void run_green(struct call *call)
{
    CUdevice ordinal = (CUdevice)call_number(call, 2, 0);
    CUdevResource resource;
    CUdevResourceDesc list;
    CUgreenCtx green = NULL;
    CUcontext context;
    CUresult result = driver.init(0);
    if (result == CUDA_SUCCESS)
        result = driver.device_resource(ordinal, &resource, DEVICE_RESOURCE_SM);
    if (result == CUDA_SUCCESS)
        result = driver.resource_list(&list, &resource, 1);
    if (result == CUDA_SUCCESS)
        result = driver.green_create(&green, list, ordinal, 1);
    if (result == CUDA_SUCCESS)
        result = driver.green_context(&context, green);
    if (result == CUDA_SUCCESS)
        result = driver.context_set(context);
    call_result_variable(call, result, call_word(call, 1), (uint64_t)green);
}

static void run_green_destroy(struct call *call)
{
    call_result(call, driver.green_destroy((CUgreenCtx)call_number(call, 1, 0)));
}

static void run_synchronize(struct call *call)
{
    call_result(call, driver.context_synchronize());
}

static void run_devices(struct call *call)
{
    int count = 0;
    CUresult result = driver.init(0);
    if (result == CUDA_SUCCESS)
        result = driver.device_count(&count);
    call_result(call, result);
    call_reply_number(call, "devices", (uint64_t)count);
}

static void run_uuid(struct call *call)
{
    CUdevice ordinal = (CUdevice)call_number(call, 1, 0);
    CUuuid uuid = {0};
    driver.init(0);
    bool first = call_is(call, 2, "v1");
    CUresult result = first ? driver.device_uuid(&uuid, ordinal) : driver.device_uuid_v2(&uuid, ordinal);
    char text[64];
    int length = snprintf(text, sizeof text, "GPU-");
    for (int index = 0; index < 16; index++)
        length += snprintf(
            text + length, sizeof text - (size_t)length, "%s%02x",
            index == 4 || index == 6 || index == 8 || index == 10 ? "-" : "", uuid.bytes[index]);
    call_result(call, result);
    call_reply_text(call, "uuid", text);
}

static void run_current(struct call *call)
{
    CUdevice ordinal = -1;
    CUresult result = driver.context_device(&ordinal);
    call_result(call, result);
    if (result == CUDA_SUCCESS)
        call_reply_number(call, "device", (uint64_t)ordinal);
}

/* kernel LOCAL: a kernel in its own module, with this many bytes of local memory per thread */
static void run_kernel(struct call *call)
{
    char name[32];
    snprintf(name, sizeof name, "local_%lu", (unsigned long)call_number(call, 1, 0));
    CUmodule module;
    CUfunction kernel;
    CUresult result = driver.module_load(&module, "no image: code runs nowhere");
    if (result == CUDA_SUCCESS)
        result = driver.module_function(&kernel, module, name);
    if (result == CUDA_SUCCESS)
        result = driver.launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    call_result(call, result);
}

const struct command context_commands[] = {
    {"init", 1, run_init},
    {"device", 2, run_device},
    {"primary", 3, run_primary},
    {"reset", 2, run_reset},
    {"ctx", 2, run_context},
    {"green", 3, run_green},
    {"greendestroy", 2, run_green_destroy},
    {"sync", 1, run_synchronize},
    {"devices", 1, run_devices},
    {"uuid", 2, run_uuid},
    {"current", 1, run_current},
    {"kernel", 2, run_kernel},
    {0},
};
