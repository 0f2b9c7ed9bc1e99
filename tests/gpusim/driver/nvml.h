/*
 * The part of the NVML ABI that the simulator implements: our own declarations of public ABI facts. The library reads the same
 * ledger as the driver, so its reports about simulated processes are exact.
 */
#ifndef GPUSIM_NVML_H
#define GPUSIM_NVML_H

#include <stdint.h>

#include "ledger.h"

#define NVML_API __attribute__((visibility("default"))) nvmlReturn

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
} nvmlReturn;

typedef struct nvml_device { int index; } *nvmlDevice; /* index in the ledger, or NVML_PARENT */
enum { NVML_PARENT = -1 }; /* the GPU whose MIG instances the ledger's devices are */

typedef struct {
    uint64_t total_bytes, free_bytes, used_bytes;
} nvmlMemory_v1;

typedef struct {
    unsigned version;
    uint64_t total_bytes, reserved_bytes, free_bytes, used_bytes;
} nvmlMemory_v2;
#define NVML_MEMORY_V2 (sizeof(nvmlMemory_v2) | (2u << 24))

typedef struct {
    unsigned process;
    uint64_t used_bytes;
} nvmlProcessInfo_v1;

typedef struct {
    unsigned process;
    uint64_t used_bytes;
    unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_v2; /* of the _v2 and _v3 calls */
_Static_assert(sizeof(nvmlProcessInfo_v2) == 24, "nvmlProcessInfo_v2");

typedef struct {
    nvmlProcessInfo_v2 info;
    uint64_t protected_bytes;
} nvmlProcessInfo_wide; /* written by the _v3 calls of drivers 535.43 to 535.98 instead */
_Static_assert(sizeof(nvmlProcessInfo_wide) == 32, "nvmlProcessInfo_wide");

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} nvmlPciInfo;
_Static_assert(sizeof(nvmlPciInfo) == 68, "nvmlPciInfo");

typedef struct {
    unsigned version;
    uint8_t cluster[16];
    int status;
    unsigned clique;
    uint8_t state;
} nvmlGpuFabricInfoV;

/* The ledger between nvmlInit and nvmlShutdown, else NULL. */
struct ledger *nvml_ledger(void);

/* NVML_SUCCESS for a device of an initialised library; otherwise the error that its calls return. */
nvmlReturn nvml_check(nvmlDevice device);

/* Part of the time since the last sample in which kernels ran on a device, percent; 0 at the first question. */
unsigned nvml_busy_percent(nvmlDevice device);

/* The handle of a device of the ledger, or of NVML_PARENT. */
nvmlDevice nvml_device(int index);

/* Whether the device of an initialised library is a MIG instance. */
bool nvml_is_instance(nvmlDevice device);

/* The GPU instance number of a ledger device: as on an H100, the smallest profile's numbers start at 7. */
unsigned nvml_gpu_instance(int device);

#endif
