#include "commands.h"
#include "driver.h"

static void run_reserve(struct call *call)
{
    CUdeviceptr address = 0;
    size_t bytes = call_number(call, 2, 0);
    CUresult result = driver.address_reserve(&address, bytes, 0, 0, 0);
    call_result_variable(call, result, call_word(call, 1), address);
}

static void run_unreserve(struct call *call)
{
    CUdeviceptr address = call_number(call, 1, 0);
    call_result(call, driver.address_free(address, call_number(call, 2, 0)));
}

/* create NAME BYTES [DEVICE|host] */
static void run_create(struct call *call)
{
    bool on_host = call_is(call, 3, "host");
    CUmemAllocationProp properties = {
        .type = ALLOCATION_TYPE_PINNED, .requested_handle_types = HANDLE_TYPE_POSIX_FD,
        .location.type = on_host ? LOCATION_HOST : LOCATION_DEVICE,
        .location.id = on_host ? 0 : (int)call_number(call, 3, 0)};
    uint64_t handle = 0;
    size_t bytes = call_number(call, 2, 0);
    CUresult result = driver.physical_create(&handle, bytes, &properties, 0);
    call_result_variable(call, result, call_word(call, 1), handle);
}

/* map ADDRESS BYTES HANDLE [HANDLE_OFFSET] */
static void run_map(struct call *call)
{
    CUdeviceptr address = call_number(call, 1, 0);
    size_t bytes = call_number(call, 2, 0);
    uint64_t handle = call_number(call, 3, 0);
    size_t offset_bytes = call_number(call, 4, 0);
    call_result(call, call->failed ? CUDA_SUCCESS : driver.map(address, bytes, offset_bytes, handle, 0));
}

static void run_unmap(struct call *call)
{
    CUdeviceptr address = call_number(call, 1, 0);
    call_result(call, driver.unmap(address, call_number(call, 2, 0)));
}

static void run_access(struct call *call)
{
    CUmemAccessDesc access = {
        .location = {.type = LOCATION_DEVICE, .id = (int)call_number(call, 3, 0)}, .flags = ACCESS_READ_WRITE};
    CUdeviceptr address = call_number(call, 1, 0);
    call_result(call, driver.set_access(address, call_number(call, 2, 0), &access, 1));
}

static void run_release(struct call *call)
{
    call_result(call, driver.physical_release(call_number(call, 1, 0)));
}

/* retain NAME ADDRESS */
static void run_retain(struct call *call)
{
    uint64_t handle = 0;
    void *address = (void *)call_number(call, 2, 0);
    CUresult result = driver.physical_retain(&handle, address);
    call_result_variable(call, result, call_word(call, 1), handle);
}

static void run_export(struct call *call)
{
    int file = -1;
    CUresult result = driver.handle_export(&file, call_number(call, 2, 0), HANDLE_TYPE_POSIX_FD, 0);
    call_result_variable(call, result, call_word(call, 1), (uint64_t)file);
}

static void run_import(struct call *call)
{
    uint64_t handle = 0;
    void *file = (void *)call_number(call, 2, 0);
    CUresult result = driver.handle_import(&handle, file, HANDLE_TYPE_POSIX_FD);
    call_result_variable(call, result, call_word(call, 1), handle);
}

static void run_multicast(struct call *call)
{
    CUmulticastObjectProp properties = {.device_count = 1, .size_bytes = call_number(call, 2, 0)};
    uint64_t handle = 0;
    CUresult result = driver.multicast_create(&handle, &properties);
    call_result_variable(call, result, call_word(call, 1), handle);
}

/* bind MULTICAST HANDLE BYTES: a call with seven arguments */
static void run_bind(struct call *call)
{
    uint64_t multicast = call_number(call, 1, 0), handle = call_number(call, 2, 0);
    call_result(call, driver.multicast_bind(multicast, 0, 0, handle, 0, call_number(call, 3, 0), 0));
}

static void run_unbind(struct call *call)
{
    uint64_t multicast = call_number(call, 1, 0);
    call_result(call, driver.multicast_unbind(multicast, 0, 0, call_number(call, 2, 0)));
}

const struct command virtual_commands[] = {
    {"reserve", 3, run_reserve},
    {"unreserve", 3, run_unreserve},
    {"create", 3, run_create},
    {"map", 4, run_map},
    {"unmap", 3, run_unmap},
    {"access", 3, run_access},
    {"release", 2, run_release},
    {"retain", 3, run_retain},
    {"export", 3, run_export},
    {"import", 3, run_import},
    {"multicast", 3, run_multicast},
    {"bind", 4, run_bind},
    {"unbind", 3, run_unbind},
    {0},
};
