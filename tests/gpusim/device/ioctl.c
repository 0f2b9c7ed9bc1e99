/*
 * The `ioctl` that libcuda calls: requests to files of this driver are answered here, all others are passed to the kernel. A
 * program's own calls do not reach this function: see device.map.
 */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "device_library.h"
#include "journal.h"
#include "requests.h"
#include "resource_manager.h"

#define EXPORTED __attribute__((visibility("default")))

enum { MOST_FILES = 16 };

static struct {
    int file;
    enum device_file kind;
} files[MOST_FILES];
static int file_count;

static const struct rm_layout *layout;

static const struct rm_layout *layout_named(const char *name)
{
    for (size_t index = 0; name && index < sizeof rm_layouts / sizeof *rm_layouts; index++)
        if (strcmp(rm_layouts[index].name, name) == 0)
            return &rm_layouts[index];
    return rm_layouts;
}

EXPORTED int gpusim_device_open(enum device_file kind)
{
    static const char *const names[] = {"nvidiactl", "nvidia0", "nvidia-uvm"};
    if (file_count == MOST_FILES) {
        errno = EMFILE;
        return -1;
    }
    int file = memfd_create(names[kind], MFD_CLOEXEC);
    if (file >= 0) {
        files[file_count].file = file;
        files[file_count++].kind = kind;
    }
    layout = layout_named(manager_machine()->layout);
    return file;
}

static void allocate(struct request *request, void *argument)
{
    uint8_t *parameters = get_pointer(argument, ALLOC_AT_PARAMETERS);
    bool is_memory = request->class == CLASS_VIDEO_MEMORY || request->class == CLASS_HOST_MEMORY;
    if (is_memory && !parameters) {
        request->status = STATUS_INVALID_ARGUMENT;
    } else {
        if (is_memory) {
            request->flags = get32(parameters, MEMORY_AT_FLAGS);
            request->attr = get32(parameters, MEMORY_AT_ATTR);
            request->asked_bytes = get64(parameters, MEMORY_AT_SIZE);
        }
        manager_allocate(request, parameters);
    }
    if (request->answer < 0)
        return;
    if (is_memory && request->status == STATUS_OK) {
        put32(parameters, MEMORY_AT_ATTR, request->attr);
        put64(parameters, MEMORY_AT_SIZE, request->granted_bytes);
    }
    put32(argument, RM_AT_OBJECT, request->object);
    put32(argument, layout->alloc_at_status, request->status);
}

static void allocate_from_heap(struct request *request, void *argument)
{
    request->object = get32(argument, HEAP_AT_OBJECT);
    request->class = CLASS_VIDEO_MEMORY;
    if (get32(argument, HEAP_AT_FUNCTION) == HEAP_FREE) {
        manager_free(request);
    } else if (get32(argument, HEAP_AT_FUNCTION) == HEAP_ALLOC_SIZE) {
        request->flags = get32(argument, HEAP_AT_FLAGS);
        request->attr = get32(argument, HEAP_AT_ATTR);
        request->asked_bytes = get64(argument, HEAP_AT_SIZE);
        manager_allocate(request, NULL);
    } else {
        request->status = STATUS_NOT_SUPPORTED;
    }
    if (request->answer < 0)
        return;
    if (request->asked_bytes && request->status == STATUS_OK) {
        put32(argument, HEAP_AT_ATTR, request->attr);
        put64(argument, HEAP_AT_SIZE, request->granted_bytes);
    }
    put32(argument, HEAP_AT_STATUS, request->status);
}

static void pin(struct request *request, void *argument)
{
    request->flags = get32(argument, ALLOC_MEMORY_AT_FLAGS);
    request->asked_bytes = get64(argument, ALLOC_MEMORY_AT_LIMIT) + 1;
    manager_allocate(request, NULL);
    if (request->answer < 0)
        return;
    put32(argument, RM_AT_OBJECT, request->object);
    put32(argument, ALLOC_MEMORY_AT_STATUS, request->status);
}

static void free_object(struct request *request, void *argument)
{
    manager_free(request);
    put32(argument, FREE_AT_STATUS, request->status);
}

static void duplicate(struct request *request, void *argument)
{
    request->source_client = get32(argument, DUP_AT_SOURCE_CLIENT);
    request->source_object = get32(argument, DUP_AT_SOURCE_OBJECT);
    manager_duplicate(request);
    put32(argument, DUP_AT_STATUS, request->status);
}

static void control(struct request *request, void *argument)
{
    request->object = get32(argument, CONTROL_AT_OBJECT);
    request->class = get32(argument, CONTROL_AT_COMMAND);
    request->parent = 0;
    manager_control(request, get_pointer(argument, CONTROL_AT_PARAMETERS));
    put32(argument, CONTROL_AT_STATUS, request->status);
}

struct row {
    uint32_t number, bytes; /* 0: as in the layout */
    bool has_class;
    void (*run)(struct request *, void *);
};

static const struct row rows[] = {
    {RM_ALLOC, 0, true, allocate},
    {RM_FREE, RM_FREE_BYTES, false, free_object},
    {RM_ALLOC_MEMORY, RM_ALLOC_MEMORY_BYTES, true, pin},
    {RM_HEAP, RM_HEAP_BYTES, false, allocate_from_heap},
    {RM_DUP, RM_DUP_BYTES, false, duplicate},
    {RM_CONTROL, RM_CONTROL_BYTES, false, control},
};

/* Returns EINVAL unless the request's number and size match, as the real driver does. */
static int request_of_manager(struct request *request, void *argument)
{
    const struct row *row = rows;
    const struct row *end = rows + sizeof rows / sizeof *rows;
    while (row < end && row->number != request->number)
        row++;
    if (row == end || !argument || request->bytes != (row->bytes ? row->bytes : layout->alloc_bytes)) {
        errno = EINVAL;
        return -1;
    }
    request->client = get32(argument, RM_AT_CLIENT);
    request->parent = get32(argument, RM_AT_PARENT);
    request->object = row->number == RM_HEAP ? 0 : get32(argument, RM_AT_OBJECT);
    request->class = row->has_class ? get32(argument, RM_AT_CLASS) : 0;
    row->run(request, argument);
    if (request->answer < 0)
        errno = EIO;
    journal_add(request);
    return request->answer;
}

static int manager(unsigned long number, void *argument)
{
    struct request request = {.number = _IOC_NR(number), .bytes = _IOC_SIZE(number)};
    if (request.number == RM_XFER && request.bytes == RM_XFER_BYTES && argument) {
        request.number = get32(argument, XFER_AT_NUMBER);
        request.bytes = get32(argument, XFER_AT_BYTES);
        request.wrapped = true;
        argument = get_pointer(argument, XFER_AT_POINTER);
    }
    return request_of_manager(&request, argument);
}

/* Requests that have no effect in the simulation. */
static bool is_idle(unsigned long number)
{
    return number == UVM_REGISTER_GPU || number == UVM_REGISTER_SPACE || number == UVM_SEMAPHORE_POOL;
}

static int uvm(unsigned long number, void *argument)
{
    if (is_idle(number))
        return 0;
    if (number != UVM_MAP_EXTERNAL && number != UVM_FREE && number != UVM_UNMAP_EXTERNAL) {
        errno = EINVAL;
        return -1;
    }
    struct request request = {
        .number = (uint32_t)number, .address = get64(argument, UVM_AT_BASE), .length = get64(argument, UVM_AT_LENGTH)};
    size_t status_at = UVM_AT_FREE_STATUS;
    if (number == UVM_MAP_EXTERNAL) {
        request.client = get32(argument, layout->map_at_client);
        request.object = get32(argument, layout->map_at_client + 4);
        status_at = layout->map_at_client + 8;
        manager_map(&request);
    }
    put32(argument, status_at, request.status);
    journal_add(&request);
    return 0;
}

static int kind_of(int file)
{
    for (int index = 0; index < file_count; index++)
        if (files[index].file == file)
            return (int)files[index].kind;
    return -1;
}

static int answer(int file, unsigned long number, void *argument)
{
    switch (kind_of(file)) {
    case DEVICE_CONTROL:
    case DEVICE_GPU: return manager(number, argument);
    case DEVICE_UVM: return uvm(number, argument);
    default: return (int)syscall(SYS_ioctl, file, number, argument);
    }
}

EXPORTED int ioctl(int file, unsigned long number, ...)
{
    va_list arguments;
    va_start(arguments, number);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return answer(file, number, argument);
}

/* The same function with an earlier symbol version, for a libcuda with two stubs. */
EXPORTED int earlier_ioctl(int file, unsigned long number, void *argument)
{
    return answer(file, number, argument);
}
__asm__(".symver earlier_ioctl, ioctl@GPUSIM_0");
