/*
 * Requests of the simulated kernel driver: numbers, sizes and offsets as in NVIDIA's open-gpu-kernel-modules, 515 to
 * 595. Their source files: nv_escape.h and nv-ioctl-numbers.h (numbers), nvos.h (arguments), cl0080.h, cl2080.h, ctrl2080gpu.h,
 * ctrl0000gpu.h (parameters), uvm_ioctl.h, nvstatuscodes.h. All numbers are little-endian.
 */
#ifndef GPUSIM_REQUESTS_H
#define GPUSIM_REQUESTS_H

#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>

/* The ioctl number of a request with an argument of this size. */
#define RM_REQUEST(number, bytes) _IOC(_IOC_READ | _IOC_WRITE, 'F', (number), (bytes))

enum rm_number {
    RM_ALLOC_MEMORY = 0x27,
    RM_FREE = 0x29,
    RM_CONTROL = 0x2a,
    RM_ALLOC = 0x2b,
    RM_DUP = 0x34,
    RM_HEAP = 0x4a,
    RM_XFER = 0xd3,
};

/* Argument sizes that are the same in all versions. */
enum {
    RM_ALLOC_MEMORY_BYTES = 56,
    RM_FREE_BYTES = 16,
    RM_CONTROL_BYTES = 32,
    RM_DUP_BYTES = 28,
    RM_HEAP_BYTES = 184,
    RM_XFER_BYTES = 16,
    RM_ALLOC_MOST_BYTES = 56,
};

/* Offsets of client, parent, object and class in every argument that has them. */
enum { RM_AT_CLIENT = 0, RM_AT_PARENT = 4, RM_AT_OBJECT = 8, RM_AT_CLASS = 12 };

/* ALLOC: offset of the pointer to its parameters. */
enum { ALLOC_AT_PARAMETERS = 16 };

/* FREE, ALLOC_MEMORY (its limit is size - 1), DUP, CONTROL, XFER. */
enum {
    FREE_AT_STATUS = 12,
    ALLOC_MEMORY_AT_FLAGS = 16,
    ALLOC_MEMORY_AT_ADDRESS = 24,
    ALLOC_MEMORY_AT_LIMIT = 32,
    ALLOC_MEMORY_AT_STATUS = 40,
    DUP_AT_SOURCE_CLIENT = 12,
    DUP_AT_SOURCE_OBJECT = 16,
    DUP_AT_STATUS = 24,
    CONTROL_AT_OBJECT = 4,
    CONTROL_AT_COMMAND = 8,
    CONTROL_AT_PARAMETERS = 16,
    CONTROL_AT_PARAMETERS_BYTES = 24,
    CONTROL_AT_STATUS = 28,
    XFER_AT_NUMBER = 0,
    XFER_AT_BYTES = 4,
    XFER_AT_POINTER = 8,
};

/* VID_HEAP_CONTROL: function 2 allocates, function 3 frees. */
enum {
    HEAP_AT_FUNCTION = 8,
    HEAP_AT_STATUS = 20,
    HEAP_AT_OBJECT = 44,
    HEAP_AT_TYPE = 48,
    HEAP_AT_FLAGS = 52,
    HEAP_AT_ATTR = 56,
    HEAP_AT_SIZE = 88,
    HEAP_AT_ATTR2 = 144,
    HEAP_ALLOC_SIZE = 2,
    HEAP_FREE = 3,
};

/* Memory parameters (NV_MEMORY_ALLOCATION_PARAMS): 120 bytes up to 535, 128 from 545. */
enum {
    MEMORY_AT_FLAGS = 8,
    MEMORY_AT_ATTR = 24,
    MEMORY_AT_ATTR2 = 28,
    MEMORY_AT_SIZE = 64,
    MEMORY_PARAMETERS_BYTES = 128,
};

/* Parameters of a device (deviceId) and of a GPU instance (swizzId). */
enum { DEVICE_AT_ID = 0, DEVICE_PARAMETERS_BYTES = 56, INSTANCE_AT_ID = 8, INSTANCE_PARAMETERS_BYTES = 16 };

/* Classes of objects. */
enum rm_class {
    CLASS_CLIENT = 0x41,
    CLASS_DEVICE = 0x80,
    CLASS_SUBDEVICE = 0x2080,
    CLASS_GPU_INSTANCE = 0xc637,
    CLASS_COMPUTE_INSTANCE = 0xc638,
    CLASS_HOST_MEMORY = 0x3e,
    CLASS_VIDEO_MEMORY = 0x40,
    CLASS_PINNED_MEMORY = 0x71,
    CLASS_ADDRESS_SPACE = 0x90f1,
};

/* Bits of memory attributes, and the flag of memory that reserves addresses only. */
enum {
    ATTR_PAGE_SIZE = 3u << 23,
    ATTR_PAGE_4K = 1u << 23,
    ATTR_PAGE_64K = 2u << 23,
    ATTR_PAGE_2M = 3u << 23,
    ATTR_LOCATION = 3u << 25,
    ATTR_PHYSICALITY = 3u << 27,
    ATTR_CONTIGUOUS = 2u << 27,
    ATTR_SCATTERED = 1u << 27,
    FLAG_VIRTUAL = 0x80000,
};

/* Controls: GET_GID_INFO of a subdevice, GET_ID_INFO of a client. */
enum {
    CONTROL_GID_INFO = 0x2080014a,
    GID_AT_FLAGS = 4,
    GID_AT_LENGTH = 8,
    GID_AT_DATA = 12,
    GID_FLAG_BINARY = 2,
    GID_PARAMETERS_BYTES = 268,
    CONTROL_ID_INFO = 0x205,
    ID_AT_GPU = 0,
    ID_AT_DEVICE = 8,
    ID_PARAMETERS_BYTES = 40,
};

/* UVM requests are plain numbers. A mapping has base, length and offset, and at a higher offset client, memory and status. */
enum {
    UVM_REGISTER_SPACE = 25,
    UVM_REGISTER_GPU = 37,
    UVM_SEMAPHORE_POOL = 68,
    UVM_OTHER_BYTES = 4096,
    UVM_MAP_EXTERNAL = 33,
    UVM_FREE = 34,
    UVM_UNMAP_EXTERNAL = 66,
    UVM_AT_BASE = 0,
    UVM_AT_LENGTH = 8,
    UVM_AT_OFFSET = 16,
    UVM_AT_FREE_STATUS = 16,
    UVM_MAP_MOST_BYTES = 9264,
};

enum rm_status {
    STATUS_OK = 0,
    STATUS_DUPLICATE = 0x19,
    STATUS_INVALID_ARGUMENT = 0x1f,
    STATUS_INVALID_CLIENT = 0x23,
    STATUS_INVALID_DEVICE = 0x26,
    STATUS_INVALID_PARENT = 0x36,
    STATUS_NO_MEMORY = 0x51,
    STATUS_NOT_SUPPORTED = 0x56,
    STATUS_NOT_FOUND = 0x57,
};

/* Differences between driver versions. */
struct rm_layout {
    const char *name; /* as in GPUSIM_RM */
    uint32_t alloc_bytes, alloc_at_status;
    uint32_t memory_bytes;  /* size of memory parameters */
    uint32_t map_at_client; /* in UVM_MAP_EXTERNAL; the memory and the status follow */
};

/* The first layout is the default. `odd` has a size that no driver uses. */
static const struct rm_layout rm_layouts[] = {
    {"580", 48, 40, 128, 9252}, {"535", 48, 40, 120, 1188}, {"525", 40, 36, 120, 1188},
    {"515", 40, 32, 120, 1188}, {"nvos21", 32, 28, 120, 9252}, {"odd", 56, 40, 128, 9252},
};

static inline uint32_t get32(const void *argument, size_t offset)
{
    uint32_t value;
    memcpy(&value, (const uint8_t *)argument + offset, sizeof value);
    return value;
}

static inline uint64_t get64(const void *argument, size_t offset)
{
    uint64_t value;
    memcpy(&value, (const uint8_t *)argument + offset, sizeof value);
    return value;
}

static inline void put32(void *argument, size_t offset, uint32_t value)
{
    memcpy((uint8_t *)argument + offset, &value, sizeof value);
}

static inline void put64(void *argument, size_t offset, uint64_t value)
{
    memcpy((uint8_t *)argument + offset, &value, sizeof value);
}

static inline void *get_pointer(const void *argument, size_t offset)
{
    return (void *)(uintptr_t)get64(argument, offset);
}

static inline void put_pointer(void *argument, size_t offset, const void *value)
{
    put64(argument, offset, (uint64_t)(uintptr_t)value);
}

#endif
