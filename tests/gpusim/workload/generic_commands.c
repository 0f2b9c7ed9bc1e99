/* Any function of the driver by its exported name: for calls whose arguments are only numbers and structs. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"

enum { MOST_BUFFERS = 1024, BUFFER_BYTES = 256, LONGEST_NAME = 32, MOST_ARGUMENTS = 8 };

struct buffer {
    char name[LONGEST_NAME];
    _Alignas(16) unsigned char bytes[BUFFER_BYTES];
};

static struct buffer buffers[MOST_BUFFERS];
static int buffer_count;
static pthread_mutex_t buffers_lock = PTHREAD_MUTEX_INITIALIZER;

/* The buffer with this name; a new one is all zeros. NULL if there are too many. */
static struct buffer *buffer_of(const char *name)
{
    pthread_mutex_lock(&buffers_lock);
    int index = 0;
    while (index < buffer_count && strcmp(buffers[index].name, name) != 0)
        index++;
    if (index == buffer_count && index < MOST_BUFFERS) {
        snprintf(buffers[index].name, LONGEST_NAME, "%s", name);
        buffer_count++;
    }
    pthread_mutex_unlock(&buffers_lock);
    return index < MOST_BUFFERS ? &buffers[index] : NULL;
}

static struct buffer *buffer_argument(struct call *call, int index)
{
    struct buffer *buffer = buffer_of(call_word(call, index) + (call_word(call, index)[0] == '*'));
    if (!buffer)
        call_fail(call, "too many buffers");
    return buffer;
}

/* set BUFFER OFFSET VALUE: eight bytes */
static void run_set(struct call *call)
{
    struct buffer *buffer = buffer_argument(call, 1);
    uint64_t offset_bytes = call_number(call, 2, 0), value = call_number(call, 3, 0);
    if (offset_bytes + sizeof value > BUFFER_BYTES)
        call_fail(call, "beyond the buffer");
    if (!call->failed)
        memcpy(buffer->bytes + offset_bytes, &value, sizeof value);
    call_result(call, CUDA_SUCCESS);
}

/* get NAME BUFFER OFFSET: eight bytes as a variable */
static void run_get(struct call *call)
{
    struct buffer *buffer = buffer_argument(call, 2);
    uint64_t offset_bytes = call_number(call, 3, 0), value = 0;
    if (offset_bytes + sizeof value > BUFFER_BYTES)
        call_fail(call, "beyond the buffer");
    if (!call->failed)
        memcpy(&value, buffer->bytes + offset_bytes, sizeof value);
    call_result_variable(call, CUDA_SUCCESS, call_word(call, 1), value);
}

typedef CUresult (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

/* call FUNCTION ARGUMENT...: *NAME is a pointer to a buffer, whose first eight bytes become the variable NAME */
static void run_call(struct call *call)
{
    uint64_t arguments[MOST_ARGUMENTS] = {0};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    function called;
    *(void **)&called = library ? dlsym(library, call_word(call, 1)) : NULL;
    if (!called)
        call_fail(call, "no such function");
    if (call->count - 2 > MOST_ARGUMENTS)
        call_fail(call, "too many arguments");
    for (int index = 2; index < call->count && !call->failed; index++) {
        bool is_buffer = call_word(call, index)[0] == '*';
        struct buffer *buffer = is_buffer ? buffer_argument(call, index) : NULL;
        arguments[index - 2] = buffer ? (uint64_t)buffer->bytes : call_number(call, index, 0);
    }
    if (call->failed)
        return;
    uint64_t *a = arguments;
    CUresult result = called(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    call_result(call, result);
    for (int index = 2; index < call->count && result == CUDA_SUCCESS; index++) {
        if (call_word(call, index)[0] != '*')
            continue;
        uint64_t value;
        memcpy(&value, (void *)arguments[index - 2], sizeof value);
        variable_set(call_word(call, index) + 1, value);
        call_reply_number(call, call_word(call, index) + 1, value);
    }
}

const struct command generic_commands[] = {
    {"set", 4, run_set},
    {"get", 4, run_get},
    {"call", 2, run_call},
    {0},
};
