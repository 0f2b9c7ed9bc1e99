/*
 * The part of the CUDA driver ABI that the simulator implements.
 *
 * These are our own declarations of public ABI facts (names, argument order, numeric values and struct layouts); no vendor
 * header is needed or copied. Only fields that the simulator reads or writes are named: the rest of a struct is padding.
 */
#ifndef GPUSIM_CUDA_ABI_H
#define GPUSIM_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t CUdeviceptr;
typedef int CUdevice; /* the ordinal in this process, not the NVML index */
typedef uint64_t CUmemGenericAllocationHandle;

typedef struct context *CUcontext;
typedef struct green_context *CUgreenCtx;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct memory_pool *CUmemoryPool;
typedef struct module *CUmodule;
typedef struct module *CUlibrary;
typedef struct kernel *CUfunction;
typedef struct kernel *CUkernel;
typedef struct array *CUarray;
typedef struct array *CUmipmappedArray;
typedef struct external_memory *CUexternalMemory;
typedef struct graph *CUgraph;
typedef struct graph_node *CUgraphNode;
typedef struct graph_executable *CUgraphExec;
typedef struct device_resource_list *CUdevResourceDesc;

typedef enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_UNKNOWN = 999,
} CUresult;

/* Every function named DRIVER_API(cuX) is reached through the exported symbol cuX, an assembly trampoline of the build. */
#define DRIVER_API(symbol) CUresult sim_##symbol

/* ---- proc addresses ---- */
enum { PROC_ADDRESS_PER_THREAD_STREAM = 2 };
typedef enum {
    PROC_ADDRESS_FOUND = 0,
    PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
} CUdriverProcAddressQueryResult;

/* ---- devices ---- */
typedef struct { uint8_t bytes[16]; } CUuuid;

typedef struct {
    int max_threads_per_block;
    int max_threads_dim[3];
    int max_grid_size[3];
    int shared_memory_per_block;
    int total_constant_memory;
    int simd_width;
    int memory_pitch;
    int registers_per_block;
    int clock_rate_khz;
    int texture_align;
} CUdevprop;

typedef struct CUdevResource {
    int type;
    uint8_t padding[92];
    union {
        struct { unsigned sm_count, minimum_partition, coscheduled_alignment, flags; } sm;
        uint8_t oversize[40];
    };
    struct CUdevResource *next;
} CUdevResource;
_Static_assert(sizeof(CUdevResource) == 144, "CUdevResource");
enum { DEVICE_RESOURCE_SM = 1 };

/* ---- memory ---- */
enum { MEMORY_TYPE_HOST = 1, MEMORY_TYPE_DEVICE = 2, MEMORY_TYPE_ARRAY = 3, MEMORY_TYPE_UNIFIED = 4 };

typedef enum {
    LOCATION_DEVICE = 1,
    LOCATION_HOST = 2,
    LOCATION_HOST_NUMA = 3,
    LOCATION_HOST_NUMA_CURRENT = 4,
} CUmemLocationType;
typedef struct { int type; int id; } CUmemLocation;

enum { ALLOCATION_TYPE_PINNED = 1, ALLOCATION_TYPE_MANAGED = 2 };
enum { HANDLE_TYPE_POSIX_FD = 1, HANDLE_TYPE_FABRIC = 8 };

typedef struct {
    int type;
    int requested_handle_types;
    CUmemLocation location;
    void *windows_attributes;
    uint8_t compression_type;
    uint8_t rdma_capable;
    uint16_t usage;
    uint8_t reserved[4];
} CUmemAllocationProp;
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");

typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;
enum { ACCESS_READ_WRITE = 3 };

typedef struct {
    int allocation_type;
    int handle_types;
    CUmemLocation location;
    void *windows_attributes;
    size_t max_size_bytes; /* 0: no limit */
    uint16_t usage;
    uint8_t reserved[54];
} CUmemPoolProps;
_Static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps");

typedef enum {
    POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
    POOL_REUSE_ALLOW_OPPORTUNISTIC = 2,
    POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
    POOL_RELEASE_THRESHOLD = 4,
    POOL_RESERVED_CURRENT = 5,
    POOL_RESERVED_HIGH = 6,
    POOL_USED_CURRENT = 7,
    POOL_USED_HIGH = 8,
} CUmemPool_attribute;

typedef struct { uint8_t bytes[64]; } CUmemPoolPtrExportData;
typedef struct { uint8_t bytes[64]; } CUipcMemHandle; /* passed by value, on the stack */

typedef struct {
    unsigned device_count;
    size_t size_bytes;
    uint64_t handle_types;
    uint64_t flags;
} CUmulticastObjectProp;

enum {
    POINTER_CONTEXT = 1,
    POINTER_MEMORY_TYPE = 2,
    POINTER_DEVICE_POINTER = 3,
    POINTER_HOST_POINTER = 4,
    POINTER_SYNC_MEMOPS = 6,
    POINTER_BUFFER_ID = 7,
    POINTER_IS_MANAGED = 8,
    POINTER_DEVICE_ORDINAL = 9,
    POINTER_IS_IPC_CAPABLE = 10,
    POINTER_RANGE_START = 11,
    POINTER_RANGE_SIZE = 12,
    POINTER_MAPPED = 13,
    POINTER_ACCESS_FLAGS = 16,
    POINTER_POOL = 17,
};

/* ---- copies ---- */
typedef struct {
    size_t x_bytes, y;
    int memory_type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t pitch_bytes;
} copy_2d_side;

typedef struct {
    copy_2d_side source, destination;
    size_t width_bytes, height;
} CUDA_MEMCPY2D;
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128, "CUDA_MEMCPY2D");

/* ---- arrays ---- */
typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR;
_Static_assert(sizeof(CUDA_ARRAY3D_DESCRIPTOR) == 40, "CUDA_ARRAY3D_DESCRIPTOR");
enum { ARRAY_SPARSE = 0x40, ARRAY_DEFERRED_MAPPING = 0x80 };

/* ---- external memory ---- */
typedef struct {
    int type;
    int padding;
    uint64_t handle[2];
    uint64_t size_bytes;
    unsigned flags;
    unsigned reserved[17];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;
_Static_assert(offsetof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size_bytes) == 24, "CUDA_EXTERNAL_MEMORY_HANDLE_DESC");

typedef struct {
    uint64_t offset_bytes, size_bytes;
    unsigned flags;
    unsigned reserved[17];
} CUDA_EXTERNAL_MEMORY_BUFFER_DESC;

/* ---- graphs ---- */
enum { GRAPH_NODE_ALLOCATE = 10, GRAPH_NODE_FREE = 11 };

typedef struct {
    CUmemPoolProps pool;
    const CUmemAccessDesc *access;
    size_t access_count;
    size_t size_bytes;
    CUdeviceptr address; /* out */
} CUDA_MEM_ALLOC_NODE_PARAMS;
_Static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120, "CUDA_MEM_ALLOC_NODE_PARAMS");
_Static_assert(offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, size_bytes) == 104, "CUDA_MEM_ALLOC_NODE_PARAMS");

typedef struct {
    int type;
    int reserved[3];
    union {
        CUDA_MEM_ALLOC_NODE_PARAMS allocate;
        struct { CUdeviceptr address; } free;
        uint8_t oversize[232];
    };
    uint64_t reserved_tail;
} CUgraphNodeParams;
_Static_assert(sizeof(CUgraphNodeParams) == 256, "CUgraphNodeParams");

typedef struct { uint8_t bytes[8]; } CUgraphEdgeData;

typedef void (*stream_callback)(CUstream stream, CUresult status, void *argument);
typedef void (*host_function)(void *argument);

#endif
