/* Memory of devices and of processes. */
#include <time.h>

#include "nvml.h"
#include "settings.h"

enum { MOST_PROCESSES = LEDGER_SLOTS };
#define NO_INSTANCE 0xffffffffu

/* ---- devices ---- */

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
    *used_bytes = ledger_used_bytes(ledger, device->index);
    ledger_unlock(ledger);
    *total_bytes = ledger->total_bytes[device->index];
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

/* ---- processes ---- */

static void delay(void)
{
    uint64_t milliseconds = settings_number("GPUSIM_NVML_DELAY_MS", 0);
    if (!milliseconds)
        return;
    struct timespec pause = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

/* The living processes with a context on the device. */
static unsigned list_processes(int device, nvmlProcessInfo_v2 *list)
{
    struct ledger *ledger = nvml_ledger();
    unsigned count = 0;
    ledger_lock(ledger);
    ledger_reap(ledger);
    for (uint32_t slot = 0; slot < ledger->slot_bound; slot++) {
        const struct ledger_process *process = &ledger->processes[slot];
        const struct ledger_device *entry = &process->devices[device];
        if (process->identity.tgid == 0 || process->suspended || entry->contexts == 0)
            continue;
        list[count++] = (nvmlProcessInfo_v2){
            .process = (unsigned)process->identity.tgid, .used_bytes = entry->used_bytes,
            .gpu_instance = NO_INSTANCE, .compute_instance = NO_INSTANCE};
    }
    ledger_unlock(ledger);
    return count;
}

/* `count` goes in as the caller's room and comes back as what is there, also when the room does not do. */
static nvmlReturn read_processes(nvmlDevice device, nvmlProcessInfo_v2 *list, unsigned *count, bool has_room)
{
    unsigned room = has_room ? *count : 0;
    nvmlReturn result = nvml_check(device);
    if (result != NVML_SUCCESS)
        return result;
    delay();
    if (settings_is("GPUSIM_NVML_FAIL", "processes"))
        return NVML_ERROR_NOT_SUPPORTED;
    *count = list_processes(device->index, list);
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice device, unsigned *count, nvmlProcessInfo_v2 *out)
{
    nvmlProcessInfo_v2 list[MOST_PROCESSES];
    nvmlReturn result = read_processes(device, list, count, out != NULL);
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned index = 0; index < *count; index++)
        out[index] = list[index];
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice device, unsigned *count, nvmlProcessInfo_v2 *out)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, out);
}

NVML_API nvmlDeviceGetComputeRunningProcesses(nvmlDevice device, unsigned *count, nvmlProcessInfo_v1 *out)
{
    nvmlProcessInfo_v2 list[MOST_PROCESSES];
    nvmlReturn result = read_processes(device, list, count, out != NULL);
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned index = 0; index < *count; index++)
        out[index] = (nvmlProcessInfo_v1){.process = list[index].process, .used_bytes = list[index].used_bytes};
    return NVML_SUCCESS;
}

static nvmlReturn no_processes(nvmlDevice device, unsigned *count)
{
    nvmlReturn result = nvml_check(device);
    if (result != NVML_SUCCESS)
        return result;
    delay();
    if (settings_is("GPUSIM_NVML_FAIL", "processes"))
        return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice device, unsigned *count, nvmlProcessInfo_v2 *out)
{
    (void)out;
    return no_processes(device, count);
}

NVML_API nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice device, unsigned *count, nvmlProcessInfo_v2 *out)
{
    (void)out;
    return no_processes(device, count);
}
