#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "driver.h"

static void run_allocate(struct call *call)
{
    CUdeviceptr address = 0;
    size_t bytes = call_number(call, 2, 0);
    CUresult result = call->failed ? CUDA_SUCCESS : driver.allocate(&address, bytes);
    call_result_variable(call, result, call_word(call, 1), address);
}

static void run_pitched(struct call *call)
{
    CUdeviceptr address = 0;
    size_t pitch = 0;
    size_t width = call_number(call, 2, 0), height = call_number(call, 3, 0);
    CUresult result = call->failed ? CUDA_SUCCESS : driver.allocate_pitched(&address, &pitch, width, height, 4);
    call_result_variable(call, result, call_word(call, 1), address);
    call_reply_number(call, "pitch", pitch);
}

static void run_managed(struct call *call)
{
    enum { ATTACH_GLOBAL = 1 };
    CUdeviceptr address = 0;
    size_t bytes = call_number(call, 2, 0);
    CUresult result = call->failed ? CUDA_SUCCESS : driver.allocate_managed(&address, bytes, ATTACH_GLOBAL);
    call_result_variable(call, result, call_word(call, 1), address);
}

static void run_free(struct call *call)
{
    CUdeviceptr address = call_number(call, 1, 0);
    call_result(call, call->failed ? CUDA_SUCCESS : driver.free(address));
}

static void run_host_allocate(struct call *call)
{
    void *address = NULL;
    size_t bytes = call_number(call, 2, 0);
    CUresult result = call_is(call, 3, "plain") ? driver.host_allocate_plain(&address, bytes)
                                                : driver.host_allocate(&address, bytes, 0);
    call_result_variable(call, result, call_word(call, 1), (uint64_t)address);
}

static void run_host_free(struct call *call)
{
    call_result(call, driver.host_free((void *)call_number(call, 1, 0)));
}

/* register NAME BYTES: registers a new buffer or, if NAME exists, that buffer again */
static void run_register(struct call *call)
{
    uint64_t known;
    size_t bytes = call_number(call, 2, 0);
    bool again = variable_get(call_word(call, 1), &known);
    void *buffer = again ? (void *)known : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    CUresult result = driver.host_register(buffer, bytes, 0);
    call_result_variable(call, result, call_word(call, 1), (uint64_t)buffer);
}

static void run_unregister(struct call *call)
{
    call_result(call, driver.host_unregister((void *)call_number(call, 1, 0)));
}

static void run_memory_info(struct call *call)
{
    size_t free_bytes = 0, total_bytes = 0;
    call_result(call, driver.memory_info(&free_bytes, &total_bytes));
    call_reply_number(call, "free_bytes", free_bytes);
    call_reply_number(call, "total_bytes", total_bytes);
}

static void run_range(struct call *call)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;
    call_result(call, driver.address_range(&base, &bytes, call_number(call, 1, 0)));
    call_reply_number(call, "base", base);
    call_reply_number(call, "bytes", bytes);
}

/* ---- arrays of 4-byte floats ---- */

enum { FORMAT_FLOAT = 0x20 };

static void run_array(struct call *call)
{
    CUDA_ARRAY_DESCRIPTOR descriptor = {
        .width = call_number(call, 2, 0), .height = call_number(call, 3, 0), .format = FORMAT_FLOAT, .channels = 1};
    CUarray array = NULL;
    CUresult result = driver.array_create(&array, &descriptor);
    call_result_variable(call, result, call_word(call, 1), (uint64_t)array);
}

static void run_array_3d(struct call *call)
{
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {
        .width = call_number(call, 2, 0), .height = call_number(call, 3, 0), .depth = call_number(call, 4, 0),
        .format = FORMAT_FLOAT, .channels = 1, .flags = (unsigned)call_number(call, 5, 0)};
    CUarray array = NULL;
    CUresult result = driver.array_create_3d(&array, &descriptor);
    call_result_variable(call, result, call_word(call, 1), (uint64_t)array);
}

static void run_mipmap(struct call *call)
{
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {
        .width = call_number(call, 2, 0), .height = call_number(call, 3, 0), .format = FORMAT_FLOAT, .channels = 1};
    CUmipmappedArray array = NULL;
    CUresult result = driver.mipmap_create(&array, &descriptor, (unsigned)call_number(call, 4, 1));
    call_result_variable(call, result, call_word(call, 1), (uint64_t)array);
}

static void run_array_free(struct call *call)
{
    call_result(call, driver.array_destroy((CUarray)call_number(call, 1, 0)));
}

static void run_mipmap_free(struct call *call)
{
    call_result(call, driver.mipmap_destroy((CUmipmappedArray)call_number(call, 1, 0)));
}

/* ---- memory of other processes ---- */

static void run_ipc_get(struct call *call)
{
    CUipcMemHandle handle = {0};
    CUresult result = driver.ipc_get(&handle, call_number(call, 1, 0));
    char text[2 * sizeof handle + 1];
    for (size_t index = 0; index < sizeof handle; index++)
        sprintf(text + 2 * index, "%02x", handle.bytes[index]);
    call_result(call, result);
    call_reply_text(call, "handle", text);
}

static void run_ipc_open(struct call *call)
{
    CUipcMemHandle handle = {0};
    const char *text = call_word(call, 2);
    CUdeviceptr address = 0;
    for (size_t index = 0; index < sizeof handle && strlen(text) >= 2 * (index + 1); index++)
        sscanf(text + 2 * index, "%2hhx", &handle.bytes[index]);
    CUresult result = driver.ipc_open(&address, handle, 1);
    call_result_variable(call, result, call_word(call, 1), address);
}

/* ipc NAME ADDRESS: exports a handle and opens it in the same process */
static void run_ipc(struct call *call)
{
    CUipcMemHandle handle = {0};
    CUdeviceptr address = 0;
    CUresult result = driver.ipc_get(&handle, call_number(call, 2, 0));
    if (result == CUDA_SUCCESS)
        result = driver.ipc_open(&address, handle, 1);
    call_result_variable(call, result, call_word(call, 1), address);
}

static void run_ipc_close(struct call *call)
{
    call_result(call, driver.ipc_close(call_number(call, 1, 0)));
}

static void run_external(struct call *call)
{
    uint64_t bytes = call_number(call, 2, 0);
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC description = {.type = 1, .size_bytes = bytes};
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {.size_bytes = bytes};
    CUexternalMemory memory;
    CUdeviceptr address = 0;
    CUresult result = driver.external_import(&memory, &description);
    if (result == CUDA_SUCCESS)
        result = driver.external_map(&address, memory, &buffer);
    call_result_variable(call, result, call_word(call, 1), address);
}

const struct command memory_commands[] = {
    {"alloc", 3, run_allocate},
    {"pitch", 4, run_pitched},
    {"managed", 3, run_managed},
    {"free", 2, run_free},
    {"hostalloc", 3, run_host_allocate},
    {"hostfree", 2, run_host_free},
    {"register", 3, run_register},
    {"unregister", 2, run_unregister},
    {"meminfo", 1, run_memory_info},
    {"range", 2, run_range},
    {"array", 4, run_array},
    {"array3d", 5, run_array_3d},
    {"mipmap", 5, run_mipmap},
    {"arrayfree", 2, run_array_free},
    {"mipmapfree", 2, run_mipmap_free},
    {"ipcget", 2, run_ipc_get},
    {"ipcopen", 3, run_ipc_open},
    {"ipc", 3, run_ipc},
    {"ipcclose", 2, run_ipc_close},
    {"external", 3, run_external},
    {0},
};
