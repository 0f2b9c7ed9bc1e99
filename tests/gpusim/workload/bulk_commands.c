/* Many calls in a row: for races, for rates and for the overhead of tracing. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "commands.h"
#include "driver.h"

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- churn ---- */

enum { MOST_THREADS = 256 };

struct churn {
    CUcontext context;
    pthread_barrier_t *start;
    uint64_t iterations;
    size_t bytes;
    uint64_t allocated, freed, failed; /* calls */
};

/* Frees each block at once, so that the threads reuse the same few addresses. */
static void *churn(void *argument)
{
    struct churn *churn = argument;
    driver.context_set(churn->context);
    pthread_barrier_wait(churn->start);
    for (uint64_t iteration = 0; iteration < churn->iterations; iteration++) {
        CUdeviceptr address;
        if (driver.allocate(&address, churn->bytes) != CUDA_SUCCESS) {
            churn->failed++;
            continue;
        }
        churn->allocated++;
        churn->freed += driver.free(address) == CUDA_SUCCESS;
    }
    return NULL;
}

/* churn THREADS ITERATIONS BYTES */
static void run_churn(struct call *call)
{
    uint64_t threads = call_number(call, 1, 0);
    struct churn common = {.iterations = call_number(call, 2, 0), .bytes = call_number(call, 3, 0)};
    if (threads == 0 || threads > MOST_THREADS)
        call_fail(call, "churn THREADS ITERATIONS BYTES, with 1 to 256 threads");
    if (call->failed)
        return;
    CUresult result = driver.context_get(&common.context);
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    common.start = &start;
    struct churn each[MOST_THREADS];
    pthread_t identities[MOST_THREADS];
    struct churn sum = {0};
    for (uint64_t thread = 0; thread < threads; thread++) {
        each[thread] = common;
        if (pthread_create(&identities[thread], NULL, churn, &each[thread]) != 0)
            abort();
    }
    for (uint64_t thread = 0; thread < threads; thread++) {
        pthread_join(identities[thread], NULL);
        sum.allocated += each[thread].allocated;
        sum.freed += each[thread].freed;
        sum.failed += each[thread].failed;
    }
    pthread_barrier_destroy(&start);
    call_result(call, result);
    call_reply_number(call, "allocated", sum.allocated);
    call_reply_number(call, "freed", sum.freed);
    call_reply_number(call, "failed", sum.failed);
}

/* ---- storm ---- */

struct storm {
    pthread_barrier_t *start;
    const char *script;
    uint64_t thread, turns;
    uint64_t commands, failed;
    char first_failure[LONGEST_LINE];
};

/* Replaces every $ in a line of the script by the thread's number. */
static void fill_in(const char *from, size_t length, uint64_t thread, char *line, size_t room)
{
    size_t written = 0;
    for (size_t index = 0; index < length && written + 24 < room; index++) {
        if (from[index] == '$')
            written += (size_t)snprintf(line + written, room - written, "%llu", (unsigned long long)thread);
        else
            line[written++] = from[index];
    }
    line[written] = '\0';
}

static void storm_line(struct storm *storm, const char *from, size_t length)
{
    char line[LONGEST_LINE];
    struct call call;
    bool must_fail = length && *from == '!';
    fill_in(from + must_fail, length - must_fail, storm->thread, line, sizeof line);
    call_parse(&call, line);
    command_run(&call);
    const char *reply = call_finish(&call);
    bool succeeded = !call.failed && strstr(reply, "\"result\":0");
    storm->commands++;
    if (succeeded == must_fail && storm->failed++ == 0)
        snprintf(storm->first_failure, sizeof storm->first_failure, "%.*s", LONGEST_LINE - 1, line);
}

static void *rage(void *argument)
{
    struct storm *storm = argument;
    pthread_barrier_wait(storm->start);
    for (uint64_t turn = 0; turn < storm->turns; turn++) {
        const char *rest = storm->script;
        while (*rest) {
            size_t length = strcspn(rest, "\n");
            if (length)
                storm_line(storm, rest, length);
            rest += length + (rest[length] != '\0');
        }
    }
    return NULL;
}

static bool read_file(const char *path, char *text, size_t room)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    text[fread(text, 1, room - 1, file)] = '\0';
    fclose(file);
    return true;
}

/* storm THREADS TURNS FILE: every thread runs the script TURNS times, concurrently; $ is the thread's number, and a line with ! must fail */
static void run_storm(struct call *call)
{
    static char script[64 * 1024];
    static struct storm each[MOST_THREADS];
    uint64_t threads = call_number(call, 1, 0);
    if (threads == 0 || threads > MOST_THREADS || !read_file(call_word(call, 3), script, sizeof script))
        call_fail(call, "storm THREADS TURNS FILE, with 1 to 256 threads and a file that can be read");
    uint64_t turns = call_number(call, 2, 1);
    if (call->failed)
        return;
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    pthread_t identities[MOST_THREADS];
    uint64_t commands = 0, failed = 0;
    for (uint64_t thread = 0; thread < threads; thread++) {
        each[thread] = (struct storm){.start = &start, .script = script, .thread = thread, .turns = turns};
        if (pthread_create(&identities[thread], NULL, rage, &each[thread]) != 0)
            abort();
    }
    for (uint64_t thread = 0; thread < threads; thread++) {
        pthread_join(identities[thread], NULL);
        commands += each[thread].commands;
        failed += each[thread].failed;
        if (each[thread].failed)
            call_reply_text(call, "first_failure", each[thread].first_failure);
    }
    pthread_barrier_destroy(&start);
    call_result(call, CUDA_SUCCESS);
    call_reply_number(call, "commands", commands);
    call_reply_number(call, "failed", failed);
}

/* ---- loop ---- */

static CUresult loop_allocate(uint64_t count, size_t bytes)
{
    CUresult result = CUDA_SUCCESS;
    for (uint64_t index = 0; index < count && result == CUDA_SUCCESS; index++) {
        CUdeviceptr address;
        result = driver.allocate(&address, bytes);
        if (result == CUDA_SUCCESS)
            result = driver.free(address);
    }
    return result;
}

static CUresult loop_allocate_async(uint64_t count, size_t bytes)
{
    CUresult result = CUDA_SUCCESS;
    for (uint64_t index = 0; index < count && result == CUDA_SUCCESS; index++) {
        CUdeviceptr address;
        result = driver.allocate_async(&address, bytes, NULL);
        if (result == CUDA_SUCCESS)
            result = driver.free_async(address, NULL);
    }
    return result;
}

static CUresult loop_set_context(uint64_t count, size_t bytes)
{
    (void)bytes;
    CUcontext context;
    CUresult result = driver.context_get(&context);
    for (uint64_t index = 0; index < count && result == CUDA_SUCCESS; index++)
        result = driver.context_set(context);
    return result;
}

static CUresult loop_host(uint64_t count, size_t bytes)
{
    CUresult result = CUDA_SUCCESS;
    for (uint64_t index = 0; index < count && result == CUDA_SUCCESS; index++) {
        void *address;
        result = driver.host_allocate(&address, bytes, 0);
        if (result == CUDA_SUCCESS)
            result = driver.host_free(address);
    }
    return result;
}

static const CUmemAllocationProp on_device_0 = {
    .type = ALLOCATION_TYPE_PINNED, .requested_handle_types = HANDLE_TYPE_POSIX_FD, .location.type = LOCATION_DEVICE};

static CUresult loop_create(uint64_t count, size_t bytes)
{
    CUresult result = CUDA_SUCCESS;
    for (uint64_t index = 0; index < count && result == CUDA_SUCCESS; index++) {
        uint64_t handle;
        result = driver.physical_create(&handle, bytes, &on_device_0, 0);
        if (result == CUDA_SUCCESS)
            result = driver.physical_release(handle);
    }
    return result;
}

static CUresult loop_map(uint64_t count, size_t bytes)
{
    CUdeviceptr address = 0;
    uint64_t handle = 0;
    CUresult result = driver.address_reserve(&address, bytes, 0, 0, 0);
    if (result == CUDA_SUCCESS)
        result = driver.physical_create(&handle, bytes, &on_device_0, 0);
    for (uint64_t index = 0; index < count && result == CUDA_SUCCESS; index++) {
        result = driver.map(address, bytes, 0, handle, 0);
        if (result == CUDA_SUCCESS)
            result = driver.unmap(address, bytes);
    }
    driver.physical_release(handle);
    driver.address_free(address, bytes);
    return result;
}

static CUresult loop_array(uint64_t count, size_t bytes)
{
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {.width = bytes / 4, .height = 1, .format = 0x20, .channels = 1};
    CUresult result = CUDA_SUCCESS;
    for (uint64_t index = 0; index < count && result == CUDA_SUCCESS; index++) {
        CUarray array;
        result = driver.array_create_3d(&array, &descriptor);
        if (result == CUDA_SUCCESS)
            result = driver.array_destroy(array);
    }
    return result;
}

static CUresult loop_ipc_get(uint64_t count, size_t bytes)
{
    CUdeviceptr address;
    CUresult result = driver.allocate(&address, bytes);
    for (uint64_t index = 0; index < count && result == CUDA_SUCCESS; index++) {
        CUipcMemHandle handle;
        result = driver.ipc_get(&handle, address);
    }
    driver.free(address);
    return result;
}

static CUresult loop_export(uint64_t count, size_t bytes)
{
    uint64_t handle;
    CUresult result = driver.physical_create(&handle, bytes, &on_device_0, 0);
    for (uint64_t index = 0; index < count && result == CUDA_SUCCESS; index++) {
        int file;
        result = driver.handle_export(&file, handle, HANDLE_TYPE_POSIX_FD, 0);
        if (result == CUDA_SUCCESS)
            close(file);
    }
    driver.physical_release(handle);
    return result;
}

static CUresult loop_context_device(uint64_t count, size_t bytes)
{
    (void)bytes;
    CUdevice ordinal;
    CUresult result = CUDA_SUCCESS;
    for (uint64_t index = 0; index < count && result == CUDA_SUCCESS; index++)
        result = driver.context_device(&ordinal);
    return result;
}

/* Number of driver calls in one turn of a loop. */
static const struct {
    const char *function;
    CUresult (*run)(uint64_t count, size_t bytes);
    unsigned calls;
} loops[] = {
    {"cuMemAlloc", loop_allocate, 2},
    {"cuMemAllocAsync", loop_allocate_async, 2},
    {"cuMemHostAlloc", loop_host, 2},
    {"cuMemCreate", loop_create, 2},
    {"cuMemMap", loop_map, 2},
    {"cuArray3DCreate", loop_array, 2},
    {"cuIpcGetMemHandle", loop_ipc_get, 1},
    {"cuMemExportToShareableHandle", loop_export, 1},
    {"cuCtxSetCurrent", loop_set_context, 1},
    {"cuCtxGetDevice", loop_context_device, 1},
};

/* Runs this many turns per second, in batches of 10 ms with a pause after each; 0: as many as possible. */
static CUresult run_paced(CUresult (*run)(uint64_t, size_t), uint64_t count, size_t bytes, uint64_t per_second)
{
    if (per_second == 0)
        return run(count, bytes);
    uint64_t start_ns = now_ns(), done = 0;
    CUresult result = CUDA_SUCCESS;
    while (done < count && result == CUDA_SUCCESS) {
        uint64_t turns = per_second / 100 > 0 ? per_second / 100 : 1;
        if (turns > count - done)
            turns = count - done;
        result = run(turns, bytes);
        done += turns;
        uint64_t due_ns = start_ns + done * 1000000000 / per_second, at_ns = now_ns();
        if (due_ns > at_ns) {
            struct timespec pause = {.tv_sec = (due_ns - at_ns) / 1000000000, .tv_nsec = (due_ns - at_ns) % 1000000000};
            nanosleep(&pause, NULL);
        }
    }
    return result;
}

/* loop FUNCTION COUNT [BYTES [TURNS_PER_SECOND]] */
static void run_loop(struct call *call)
{
    uint64_t count = call_number(call, 2, 0);
    size_t bytes = call_number(call, 3, 2 * 1024 * 1024);
    uint64_t per_second = call_number(call, 4, 0);
    if (call->failed)
        return;
    for (size_t index = 0; index < sizeof loops / sizeof *loops; index++) {
        if (!call_is(call, 1, loops[index].function))
            continue;
        uint64_t start_ns = now_ns();
        CUresult result = run_paced(loops[index].run, count, bytes, per_second);
        uint64_t total_ns = now_ns() - start_ns;
        call_result(call, result);
        call_reply_number(call, "calls", count * loops[index].calls);
        call_reply_number(call, "total_ns", total_ns);
        return;
    }
    call_fail(call, "loop FUNCTION COUNT [BYTES [TURNS_PER_SECOND]], with a function of the list");
}

const struct command bulk_commands[] = {
    {"churn", 4, run_churn},
    {"storm", 4, run_storm},
    {"loop", 3, run_loop},
    {0},
};
