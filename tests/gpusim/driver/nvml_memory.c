/* Memory of devices. */
#include "nvml.h"
#include "settings.h"

static nvmlReturn read_memory(nvmlDevice device, uint64_t *total_bytes, uint64_t *used_bytes)
{
    nvmlReturn result = nvml_check(device);
    if (result != NVML_SUCCESS)
        return result;
    if (settings_is("GPUSIM_NVML_FAIL", "memory_info"))
        return NVML_ERROR_NOT_SUPPORTED;
    struct ledger *ledger = nvml_ledger();
    ledger_lock(ledger);
    ledger_reap(ledger);
    *used_bytes = *total_bytes = 0;
    for (int index = 0; index < (int)ledger->device_count; index++) {
        if (device->index != index && device->index != NVML_PARENT)
            continue;
        *used_bytes += ledger_used_bytes(ledger, index);
        *total_bytes += ledger->total_bytes[index];
    }
    ledger_unlock(ledger);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMemoryInfo(nvmlDevice device, nvmlMemory_v1 *memory)
{
    nvmlReturn result = read_memory(device, &memory->total_bytes, &memory->used_bytes);
    if (result == NVML_SUCCESS)
        memory->free_bytes = memory->total_bytes - memory->used_bytes;
    return result;
}

NVML_API nvmlDeviceGetMemoryInfo_v2(nvmlDevice device, nvmlMemory_v2 *memory)
{
    if (memory->version != NVML_MEMORY_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn result = read_memory(device, &memory->total_bytes, &memory->used_bytes);
    if (result == NVML_SUCCESS) {
        memory->reserved_bytes = 0;
        memory->free_bytes = memory->total_bytes - memory->used_bytes;
    }
    return result;
}

