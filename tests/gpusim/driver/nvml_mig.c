/* MIG: one GPU whose instances are the ledger's devices. */
#include "nvml.h"

enum { FIRST_GPU_INSTANCE = 7, MOST_INSTANCES = 7 };

unsigned nvml_gpu_instance(int device)
{
    return FIRST_GPU_INSTANCE + (unsigned)device;
}

NVML_API nvmlDeviceGetMigMode(nvmlDevice device, unsigned *current, unsigned *pending)
{
    nvmlReturn result = nvml_check(device);
    if (result != NVML_SUCCESS)
        return result;
    if (nvml_is_instance(device))
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = device->index == NVML_PARENT;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMaxMigDeviceCount(nvmlDevice device, unsigned *count)
{
    nvmlReturn result = nvml_check(device);
    if (result != NVML_SUCCESS)
        return result;
    unsigned devices = nvml_ledger()->device_count;
    *count = device->index != NVML_PARENT ? 0 : devices > MOST_INSTANCES ? devices : MOST_INSTANCES;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice device, unsigned index, nvmlDevice *instance)
{
    unsigned most;
    nvmlReturn result = nvmlDeviceGetMaxMigDeviceCount(device, &most);
    if (result != NVML_SUCCESS)
        return result;
    if (index >= most)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (index >= nvml_ledger()->device_count)
        return NVML_ERROR_NOT_FOUND;
    *instance = nvml_device((int)index);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice instance, nvmlDevice *device)
{
    nvmlReturn result = nvml_check(instance);
    if (result != NVML_SUCCESS)
        return result;
    if (!nvml_is_instance(instance))
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = nvml_device(NVML_PARENT);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceIsMigDeviceHandle(nvmlDevice device, unsigned *is_instance)
{
    nvmlReturn result = nvml_check(device);
    if (result == NVML_SUCCESS)
        *is_instance = nvml_is_instance(device);
    return result;
}

NVML_API nvmlDeviceGetGpuInstanceId(nvmlDevice device, unsigned *id)
{
    nvmlReturn result = nvml_check(device);
    if (result != NVML_SUCCESS)
        return result;
    if (!nvml_is_instance(device))
        return NVML_ERROR_NOT_SUPPORTED;
    *id = nvml_gpu_instance(device->index);
    return NVML_SUCCESS;
}

/* Every GPU instance has one compute instance. */
NVML_API nvmlDeviceGetComputeInstanceId(nvmlDevice device, unsigned *id)
{
    nvmlReturn result = nvmlDeviceGetGpuInstanceId(device, id);
    if (result == NVML_SUCCESS)
        *id = 0;
    return result;
}
