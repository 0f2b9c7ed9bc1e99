/* Memory of devices. */
#include "nvml.h"
#include "settings.h"

struct device_memory {
    uint64_t total_bytes, reserved_bytes, used_bytes;
};

static nvmlReturn read_memory(nvmlDevice device, struct device_memory *memory)
{
    nvmlReturn result = nvml_check(device);
    if (result != NVML_SUCCESS)
        return result;
    if (settings_is("GPUSIM_NVML_FAIL", "memory_info"))
        return NVML_ERROR_NOT_SUPPORTED;
    struct ledger *ledger = nvml_ledger();
    ledger_lock(ledger);
    ledger_reap(ledger);
    *memory = (struct device_memory){0};
    for (int index = 0; index < (int)ledger->device_count; index++) {
        if (device->index != index && device->index != NVML_PARENT)
            continue;
        memory->used_bytes += ledger_used_bytes(ledger, index);
        memory->total_bytes += ledger->total_bytes[index];
        memory->reserved_bytes += ledger->total_bytes[index] - ledger_usable_bytes(ledger, index);
    }
    ledger_unlock(ledger);
    return NVML_SUCCESS;
}

/* As on an H100: the first version counts reserved memory as used, the second reports it separately. */
NVML_API nvmlDeviceGetMemoryInfo(nvmlDevice device, nvmlMemory_v1 *memory)
{
    struct device_memory found;
    nvmlReturn result = read_memory(device, &found);
    if (result == NVML_SUCCESS) {
        memory->total_bytes = found.total_bytes;
        memory->used_bytes = found.used_bytes + found.reserved_bytes;
        memory->free_bytes = memory->total_bytes - memory->used_bytes;
    }
    return result;
}

NVML_API nvmlDeviceGetMemoryInfo_v2(nvmlDevice device, nvmlMemory_v2 *memory)
{
    if (memory->version != NVML_MEMORY_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    struct device_memory found;
    nvmlReturn result = read_memory(device, &found);
    if (result == NVML_SUCCESS) {
        memory->total_bytes = found.total_bytes;
        memory->reserved_bytes = found.reserved_bytes;
        memory->used_bytes = found.used_bytes;
        memory->free_bytes = memory->total_bytes - memory->reserved_bytes - memory->used_bytes;
    }
    return result;
}
