#include "commands.h"
#include "driver.h"

static void run_stream(struct call *call)
{
    CUstream stream = NULL;
    CUresult result = driver.stream_create(&stream, 0);
    call_result_variable(call, result, call_word(call, 1), (uint64_t)stream);
}

static void run_stream_destroy(struct call *call)
{
    call_result(call, driver.stream_destroy((CUstream)call_number(call, 1, 0)));
}

static void run_stream_synchronize(struct call *call)
{
    call_result(call, driver.stream_synchronize((CUstream)call_number(call, 1, 0)));
}

static void run_event_synchronize(struct call *call)
{
    CUevent event;
    CUresult result = driver.event_create(&event, 0);
    if (result == CUDA_SUCCESS) {
        result = driver.event_synchronize(event);
        driver.event_destroy(event);
    }
    call_result(call, result);
}

/* async NAME BYTES [STREAM] [ptsz] */
static void run_allocate(struct call *call)
{
    CUdeviceptr address = 0;
    size_t bytes = call_number(call, 2, 0);
    CUstream stream = (CUstream)call_number(call, 3, 0);
    if (call->failed)
        return;
    CUresult result = call_is(call, 4, "ptsz") ? driver.allocate_async_ptsz(&address, bytes, stream)
                                               : driver.allocate_async(&address, bytes, stream);
    call_result_variable(call, result, call_word(call, 1), address);
}

/* frompool NAME BYTES POOL [STREAM] [ptsz] */
static void run_allocate_from_pool(struct call *call)
{
    CUdeviceptr address = 0;
    size_t bytes = call_number(call, 2, 0);
    CUmemoryPool pool = (CUmemoryPool)call_number(call, 3, 0);
    CUstream stream = (CUstream)call_number(call, 4, 0);
    if (call->failed)
        return;
    CUresult result = call_is(call, 5, "ptsz") ? driver.allocate_from_pool_ptsz(&address, bytes, pool, stream)
                                               : driver.allocate_from_pool(&address, bytes, pool, stream);
    call_result_variable(call, result, call_word(call, 1), address);
}

/* asyncfree NAME [STREAM] [ptsz] */
static void run_free(struct call *call)
{
    CUdeviceptr address = call_number(call, 1, 0);
    CUstream stream = (CUstream)call_number(call, 2, 0);
    if (call->failed)
        return;
    bool per_thread = call_is(call, 3, "ptsz");
    call_result(call, per_thread ? driver.free_async_ptsz(address, stream) : driver.free_async(address, stream));
}

/* ---- pool ACTION ... ---- */

/* pool create NAME DEVICE [managed|host] */
static void create_pool(struct call *call)
{
    CUmemPoolProps properties = {
        .allocation_type = call_is(call, 4, "managed") ? ALLOCATION_TYPE_MANAGED : ALLOCATION_TYPE_PINNED,
        .location.type = call_is(call, 4, "host") ? LOCATION_HOST : LOCATION_DEVICE,
        .location.id = (int)call_number(call, 3, 0)};
    CUmemoryPool pool = NULL;
    CUresult result = driver.pool_create(&pool, &properties);
    call_result_variable(call, result, call_word(call, 2), (uint64_t)pool);
}

static void show_pool(struct call *call)
{
    static const struct {
        const char *field;
        CUmemPool_attribute attribute;
    } shown[] = {
        {"release_threshold_bytes", POOL_RELEASE_THRESHOLD}, {"reserved_bytes", POOL_RESERVED_CURRENT},
        {"reserved_high_bytes", POOL_RESERVED_HIGH}, {"used_bytes", POOL_USED_CURRENT},
        {"used_high_bytes", POOL_USED_HIGH},
    };
    CUmemoryPool pool = (CUmemoryPool)call_number(call, 2, 0);
    CUresult result = CUDA_SUCCESS;
    for (size_t index = 0; index < sizeof shown / sizeof *shown && result == CUDA_SUCCESS; index++) {
        uint64_t value = 0;
        result = driver.pool_get(pool, shown[index].attribute, &value);
        call_reply_number(call, shown[index].field, value);
    }
    call_result(call, result);
}

static void run_pool(struct call *call)
{
    CUmemoryPool pool = NULL;
    if (call_is(call, 1, "create")) {
        create_pool(call);
    } else if (call_is(call, 1, "destroy")) {
        call_result(call, driver.pool_destroy((CUmemoryPool)call_number(call, 2, 0)));
    } else if (call_is(call, 1, "trim")) {
        call_result(call, driver.pool_trim((CUmemoryPool)call_number(call, 2, 0), call_number(call, 3, 0)));
    } else if (call_is(call, 1, "threshold")) {
        uint64_t bytes = call_number(call, 3, 0);
        call_result(call, driver.pool_set((CUmemoryPool)call_number(call, 2, 0), POOL_RELEASE_THRESHOLD, &bytes));
    } else if (call_is(call, 1, "default")) {
        CUresult result = driver.pool_default(&pool, (CUdevice)call_number(call, 3, 0));
        call_result_variable(call, result, call_word(call, 2), (uint64_t)pool);
    } else if (call_is(call, 1, "current")) {
        CUresult result = driver.pool_current(&pool, (CUdevice)call_number(call, 3, 0));
        call_result_variable(call, result, call_word(call, 2), (uint64_t)pool);
    } else if (call_is(call, 1, "use")) {
        call_result(call, driver.pool_use((CUdevice)call_number(call, 3, 0), (CUmemoryPool)call_number(call, 2, 0)));
    } else if (call_is(call, 1, "info")) {
        show_pool(call);
    } else {
        call_fail(call, "pool create|destroy|trim|threshold|default|current|use|info NAME ...");
    }
}

const struct command pool_commands[] = {
    {"stream", 2, run_stream},
    {"streamdestroy", 2, run_stream_destroy},
    {"streamsync", 1, run_stream_synchronize},
    {"eventsync", 1, run_event_synchronize},
    {"async", 3, run_allocate},
    {"frompool", 4, run_allocate_from_pool},
    {"asyncfree", 2, run_free},
    {"pool", 3, run_pool},
    {0},
};
