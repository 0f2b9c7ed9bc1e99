/* The lists of processes with memory on a device. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "nvml.h"
#include "settings.h"

/* A process may be on every instance of a GPU; one entry is for GPUSIM_NVML_GHOST. */
enum { MOST_ENTRIES = LEDGER_SLOTS * LEDGER_DEVICES + 1 };
#define NO_INSTANCE 0xffffffffu

enum list { COMPUTE, GRAPHICS, MPS };

static void delay(void)
{
    uint64_t milliseconds = settings_number("GPUSIM_NVML_DELAY_MS", 0);
    if (!milliseconds)
        return;
    struct timespec pause = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

/* With an MPS server, processes are listed as its clients. */
static bool stands_in(enum list list)
{
    if (settings_number("GPUSIM_NVML_DUPLICATES", 0))
        return true;
    return list == (settings_number("GPUSIM_MPS", 0) ? MPS : COMPUTE);
}

/* Appends the living processes with a context on one device of the ledger. */
static unsigned append_device(const struct ledger *ledger, int device, nvmlProcessInfo_v2 *list, unsigned count)
{
    for (uint32_t slot = 0; slot < ledger->slot_bound; slot++) {
        const struct ledger_process *process = &ledger->processes[slot];
        const struct ledger_device *entry = &process->devices[device];
        if (process->identity.tgid == 0 || process->suspended || entry->contexts == 0)
            continue;
        list[count++] = (nvmlProcessInfo_v2){
            .process = (unsigned)process->identity.tgid, .used_bytes = entry->used_bytes,
            .gpu_instance = ledger->mig ? nvml_gpu_instance(device) : NO_INSTANCE,
            .compute_instance = ledger->mig ? 0 : NO_INSTANCE};
    }
    return count;
}

static unsigned list_processes(nvmlDevice device, nvmlProcessInfo_v2 *list)
{
    struct ledger *ledger = nvml_ledger();
    unsigned count = 0;
    ledger_lock(ledger);
    ledger_reap(ledger);
    for (int index = 0; index < (int)ledger->device_count; index++)
        if (device->index == index || device->index == NVML_PARENT)
            count = append_device(ledger, index, list, count);
    ledger_unlock(ledger);
    unsigned ghost = (unsigned)settings_number("GPUSIM_NVML_GHOST", 0);
    if (ghost)
        list[count++] = (nvmlProcessInfo_v2){
            .process = ghost, .used_bytes = MEBIBYTE, .gpu_instance = NO_INSTANCE, .compute_instance = NO_INSTANCE};
    return count;
}

/* Simulates a process that joins between the count and the list, for the first calls that request a list. */
static bool meets_newcomer(void)
{
    static atomic_ulong met;
    return atomic_load(&met) < settings_number("GPUSIM_NVML_JOINS", 0)
        && atomic_fetch_add(&met, 1) < settings_number("GPUSIM_NVML_JOINS", 0);
}

/* `count` is the capacity on input and the number of entries on output, even if the capacity is too small. */
static nvmlReturn read_list(
    nvmlDevice device, enum list which, nvmlProcessInfo_v2 *list, unsigned *count, bool has_room)
{
    unsigned room = has_room ? *count : 0;
    nvmlReturn result = nvml_check(device);
    if (result != NVML_SUCCESS)
        return result;
    delay();
    if (settings_is("GPUSIM_NVML_FAIL", "processes"))
        return NVML_ERROR_NOT_SUPPORTED;
    *count = stands_in(which) ? list_processes(device, list) : 0;
    if (*count > 0 && has_room && meets_newcomer()) {
        *count = room + 1;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn answer_v2(nvmlDevice device, enum list which, unsigned *count, nvmlProcessInfo_v2 *out)
{
    nvmlProcessInfo_v2 list[MOST_ENTRIES];
    nvmlReturn result = read_list(device, which, list, count, out != NULL);
    for (unsigned index = 0; result == NVML_SUCCESS && index < *count; index++)
        out[index] = list[index];
    return result;
}

/* These drivers write entries of 32 bytes although the call's type has 24. */
static bool writes_wide_entries(void)
{
    const char *version = getenv("GPUSIM_NVML_DRIVER");
    unsigned branch, release;
    return version && sscanf(version, "%u.%u", &branch, &release) == 2 && branch == 535 && release >= 43 && release < 104;
}

static nvmlReturn answer_v3(nvmlDevice device, enum list which, unsigned *count, nvmlProcessInfo_v2 *out)
{
    if (!writes_wide_entries())
        return answer_v2(device, which, count, out);
    nvmlProcessInfo_v2 list[MOST_ENTRIES];
    nvmlReturn result = read_list(device, which, list, count, out != NULL);
    nvmlProcessInfo_wide *wide = (nvmlProcessInfo_wide *)out;
    for (unsigned index = 0; result == NVML_SUCCESS && index < *count; index++)
        wide[index] = (nvmlProcessInfo_wide){.info = list[index]};
    return result;
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice device, unsigned *count, nvmlProcessInfo_v2 *out)
{
    return answer_v3(device, COMPUTE, count, out);
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice device, unsigned *count, nvmlProcessInfo_v2 *out)
{
    return answer_v2(device, COMPUTE, count, out);
}

NVML_API nvmlDeviceGetComputeRunningProcesses(nvmlDevice device, unsigned *count, nvmlProcessInfo_v1 *out)
{
    nvmlProcessInfo_v2 list[MOST_ENTRIES];
    nvmlReturn result = read_list(device, COMPUTE, list, count, out != NULL);
    for (unsigned index = 0; result == NVML_SUCCESS && index < *count; index++)
        out[index] = (nvmlProcessInfo_v1){.process = list[index].process, .used_bytes = list[index].used_bytes};
    return result;
}

NVML_API nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice device, unsigned *count, nvmlProcessInfo_v2 *out)
{
    return answer_v3(device, GRAPHICS, count, out);
}

NVML_API nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice device, unsigned *count, nvmlProcessInfo_v2 *out)
{
    return answer_v2(device, GRAPHICS, count, out);
}

NVML_API nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice device, unsigned *count, nvmlProcessInfo_v2 *out)
{
    return answer_v3(device, MPS, count, out);
}

NVML_API nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice device, unsigned *count, nvmlProcessInfo_v2 *out)
{
    return answer_v2(device, MPS, count, out);
}
