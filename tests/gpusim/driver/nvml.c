#include "nvml.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "settings.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ledger *ledger; /* mapped once and kept: other threads may read it during a shutdown */
static int users;
static struct nvml_device devices[LEDGER_DEVICES];
static struct nvml_device parent = {NVML_PARENT};

struct ledger *nvml_ledger(void)
{
    return __atomic_load_n(&users, __ATOMIC_ACQUIRE) > 0 ? ledger : NULL;
}

nvmlReturn nvml_check(nvmlDevice device)
{
    if (!nvml_ledger())
        return NVML_ERROR_UNINITIALIZED;
    return device ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlDevice nvml_device(int index)
{
    return index == NVML_PARENT ? &parent : &devices[index];
}

bool nvml_is_instance(nvmlDevice device)
{
    return nvml_ledger()->mig && device->index != NVML_PARENT;
}

/* ---- library ---- */

NVML_API nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    if (settings_is("GPUSIM_NVML_FAIL", "init"))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    pthread_mutex_lock(&lock);
    if (!ledger)
        ledger = ledger_open();
    if (ledger) {
        for (int index = 0; index < LEDGER_DEVICES; index++)
            devices[index].index = index;
        __atomic_fetch_add(&users, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return ledger ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

NVML_API nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

NVML_API nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

NVML_API nvmlShutdown(void)
{
    if (!nvml_ledger())
        return NVML_ERROR_UNINITIALIZED;
    __atomic_fetch_sub(&users, 1, __ATOMIC_RELEASE);
    return NVML_SUCCESS;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn error)
{
    switch (error) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
    default: return "Unknown Error";
    }
}

NVML_API nvmlSystemGetDriverVersion(char *text, unsigned length)
{
    const char *version = getenv("GPUSIM_NVML_DRIVER");
    snprintf(text, length, "%s", version && *version ? version : "595.00");
    return NVML_SUCCESS;
}

NVML_API nvmlSystemGetNVMLVersion(char *text, unsigned length)
{
    snprintf(text, length, "13.595.00");
    return NVML_SUCCESS;
}

NVML_API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = (int)settings_number("GPUSIM_DRIVER_VERSION", 13020);
    return NVML_SUCCESS;
}

NVML_API nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* ---- finding devices ---- */

NVML_API nvmlDeviceGetCount_v2(unsigned *count)
{
    if (!nvml_ledger())
        return NVML_ERROR_UNINITIALIZED;
    *count = nvml_ledger()->mig ? 1 : nvml_ledger()->device_count;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

NVML_API nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice *device)
{
    if (!nvml_ledger())
        return NVML_ERROR_UNINITIALIZED;
    unsigned count;
    nvmlDeviceGetCount_v2(&count);
    if (index >= count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = nvml_device(nvml_ledger()->mig ? NVML_PARENT : (int)index);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

NVML_API nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice *device)
{
    unsigned domain, bus;
    bool found = sscanf(text, "%x:%x", &domain, &bus) == 2 && bus >= FIRST_PCI_BUS;
    nvmlReturn result = found ? nvmlDeviceGetHandleByIndex_v2(bus - FIRST_PCI_BUS, device) : NVML_ERROR_NOT_FOUND;
    return result == NVML_ERROR_INVALID_ARGUMENT ? NVML_ERROR_NOT_FOUND : result;
}

NVML_API nvmlDeviceGetUUID(nvmlDevice device, char *text, unsigned length)
{
    nvmlReturn result = nvml_check(device);
    if (result != NVML_SUCCESS)
        return result;
    char uuid[UUID_TEXT];
    if (device->index == NVML_PARENT)
        model_parent_uuid(nvml_ledger(), uuid);
    else
        model_uuid(nvml_ledger(), device->index, uuid);
    return (unsigned)snprintf(text, length, "%s", uuid) < length ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

NVML_API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice *device)
{
    if (!nvml_ledger())
        return NVML_ERROR_UNINITIALIZED;
    int first = nvml_ledger()->mig ? NVML_PARENT : 0;
    for (int index = first; index < (int)nvml_ledger()->device_count; index++) {
        char candidate[UUID_TEXT];
        nvmlDeviceGetUUID(nvml_device(index), candidate, sizeof candidate);
        if (strcmp(candidate, uuid) != 0)
            continue;
        *device = nvml_device(index);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

/* ---- properties of a device ---- */

NVML_API nvmlDeviceGetName(nvmlDevice device, char *text, unsigned length)
{
    nvmlReturn result = nvml_check(device);
    if (result != NVML_SUCCESS)
        return result;
    if (device->index == NVML_PARENT)
        snprintf(text, length, "%s", GPU_NAME);
    else
        model_name(nvml_ledger(), device->index, text, length);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetIndex(nvmlDevice device, unsigned *index)
{
    *index = device->index == NVML_PARENT ? 0 : (unsigned)device->index;
    return nvml_check(device);
}

NVML_API nvmlDeviceGetMinorNumber(nvmlDevice device, unsigned *minor)
{
    return nvmlDeviceGetIndex(device, minor);
}

NVML_API nvmlDeviceGetPciInfo_v3(nvmlDevice device, nvmlPciInfo *info)
{
    nvmlReturn result = nvml_check(device);
    if (result != NVML_SUCCESS)
        return result;
    if (nvml_is_instance(device))
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned bus = FIRST_PCI_BUS + (device->index == NVML_PARENT ? 0 : (unsigned)device->index);
    memset(info, 0, sizeof *info);
    info->bus = bus;
    info->device_id = 0x233010DE;
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "0000:%02X:00.0", bus);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", bus);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCudaComputeCapability(nvmlDevice device, int *major, int *minor)
{
    *major = 9;
    *minor = 0;
    return nvml_check(device);
}

/* 128 per multiprocessor of an H100. */
NVML_API nvmlDeviceGetNumGpuCores(nvmlDevice device, unsigned *cores)
{
    *cores = 132 * 128;
    return nvml_check(device);
}

NVML_API nvmlDeviceGetUtilizationRates(nvmlDevice device, unsigned rates[2])
{
    nvmlReturn result = nvml_check(device);
    if (result != NVML_SUCCESS)
        return result;
    if (nvml_is_instance(device))
        return NVML_ERROR_NOT_SUPPORTED;
    rates[0] = nvml_busy_percent(device);
    rates[1] = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetTemperature(nvmlDevice device, int sensor, unsigned *degrees)
{
    (void)sensor;
    *degrees = 30;
    return nvml_check(device);
}

NVML_API nvmlDeviceGetPowerUsage(nvmlDevice device, unsigned *milliwatts)
{
    *milliwatts = 70000;
    return nvml_check(device);
}

/* PyTorch looks up these symbols and accepts "not supported" as an answer, but not a missing symbol. */
NVML_API nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice device, unsigned link, int *type)
{
    (void)device, (void)link, (void)type;
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice device, unsigned link, void *info)
{
    (void)device, (void)link, (void)info;
    return NVML_ERROR_NOT_SUPPORTED;
}

/* PyTorch warns when this call fails. State 3: the GPU is in an NVLink fabric, and no program may export memory to it. */
NVML_API nvmlDeviceGetGpuFabricInfoV(nvmlDevice device, nvmlGpuFabricInfoV *info)
{
    memset(info->cluster, 0, sizeof info->cluster);
    bool is_there = settings_number("GPUSIM_FABRIC", 0) != 0;
    info->status = is_there ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    info->clique = 0;
    info->state = is_there ? 3 : 0;
    return nvml_check(device);
}

NVML_API nvmlDeviceGetGpuFabricInfo(nvmlDevice device, void *info)
{
    (void)device, (void)info;
    return NVML_ERROR_NOT_SUPPORTED;
}
