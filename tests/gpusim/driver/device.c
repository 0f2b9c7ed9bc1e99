#include "device.h"

#include <stdio.h>
#include <string.h>

#include "accounting.h"
#include "driver.h"
#include "model.h"

enum { ATTRIBUTE_PCI_BUS = 33 };

DRIVER_API(cuDeviceGetCount)(int *count)
{
    if (device_visible_count() < 0)
        return CUDA_ERROR_NOT_INITIALIZED;
    *count = device_visible_count();
    return CUDA_SUCCESS;
}

DRIVER_API(cuDeviceGet)(CUdevice *ordinal_out, int ordinal)
{
    int device;
    CUresult result = device_of_ordinal(ordinal, &device);
    if (result == CUDA_SUCCESS)
        *ordinal_out = ordinal;
    return result;
}

DRIVER_API(cuDeviceGetName)(char *name, int length, CUdevice ordinal)
{
    int device;
    CUresult result = device_of_ordinal(ordinal, &device);
    if (result == CUDA_SUCCESS)
        model_name(accounting_ledger(), device, name, (size_t)length);
    return result;
}

/* The first version does not support MIG instances: it returns the UUID of the GPU. */
DRIVER_API(cuDeviceGetUuid)(CUuuid *uuid, CUdevice ordinal)
{
    const struct ledger *ledger = accounting_ledger();
    int device;
    CUresult result = device_of_ordinal(ordinal, &device);
    if (result == CUDA_SUCCESS)
        memcpy(uuid->bytes, ledger->mig ? ledger->parent_uuid : ledger->uuid[device], sizeof uuid->bytes);
    return result;
}

DRIVER_API(cuDeviceGetUuid_v2)(CUuuid *uuid, CUdevice ordinal)
{
    int device;
    CUresult result = device_of_ordinal(ordinal, &device);
    if (result == CUDA_SUCCESS)
        memcpy(uuid->bytes, accounting_ledger()->uuid[device], sizeof uuid->bytes);
    return result;
}

DRIVER_API(cuDeviceTotalMem_v2)(size_t *bytes, CUdevice ordinal)
{
    int device;
    CUresult result = device_of_ordinal(ordinal, &device);
    if (result == CUDA_SUCCESS)
        *bytes = ledger_usable_bytes(accounting_ledger(), device);
    return result;
}

DRIVER_API(cuDeviceGetPCIBusId)(char *text, int length, CUdevice ordinal)
{
    int device;
    CUresult result = device_of_ordinal(ordinal, &device);
    if (result == CUDA_SUCCESS)
        snprintf(text, (size_t)length, "0000:%02X:00.0", model_pci_bus(accounting_ledger(), device));
    return result;
}

DRIVER_API(cuDeviceGetByPCIBusId)(CUdevice *ordinal, const char *text)
{
    unsigned domain, bus;
    if (sscanf(text, "%x:%x", &domain, &bus) != 2)
        return CUDA_ERROR_INVALID_VALUE;
    int device = (int)bus - FIRST_PCI_BUS;
    CUdevice found = device_ordinal(device);
    if (accounting_ledger()->mig)
        found = device == 0 ? 0 : -1;
    if (found < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *ordinal = found;
    return CUDA_SUCCESS;
}

DRIVER_API(cuDeviceGetAttribute)(int *value, int attribute, CUdevice ordinal)
{
    int device;
    CUresult result = device_of_ordinal(ordinal, &device);
    if (result == CUDA_SUCCESS)
        *value = attribute == ATTRIBUTE_PCI_BUS ? model_pci_bus(accounting_ledger(), device) : device_attribute(attribute);
    return result;
}

DRIVER_API(cuDeviceComputeCapability)(int *major, int *minor, CUdevice ordinal)
{
    int device;
    CUresult result = device_of_ordinal(ordinal, &device);
    if (result == CUDA_SUCCESS) {
        *major = device_attribute(75);
        *minor = device_attribute(76);
    }
    return result;
}

DRIVER_API(cuDeviceGetProperties)(CUdevprop *properties, CUdevice ordinal)
{
    int device;
    CUresult result = device_of_ordinal(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    *properties = (CUdevprop){
        .max_threads_per_block = device_attribute(1),
        .max_threads_dim = {device_attribute(2), device_attribute(3), device_attribute(4)},
        .max_grid_size = {device_attribute(5), device_attribute(6), device_attribute(7)},
        .shared_memory_per_block = device_attribute(8),
        .total_constant_memory = device_attribute(9),
        .simd_width = device_attribute(10),
        .memory_pitch = device_attribute(11),
        .registers_per_block = device_attribute(12),
        .clock_rate_khz = device_attribute(13),
        .texture_align = device_attribute(14),
    };
    return CUDA_SUCCESS;
}

DRIVER_API(cuDeviceCanAccessPeer)(int *can_access, CUdevice ordinal, CUdevice peer)
{
    *can_access = ordinal != peer;
    return CUDA_SUCCESS;
}

DRIVER_API(cuDeviceGetP2PAttribute)(int *value, int attribute, CUdevice from, CUdevice to)
{
    (void)attribute, (void)from, (void)to;
    *value = 0;
    return CUDA_SUCCESS;
}

DRIVER_API(cuDeviceGetExecAffinitySupport)(int *supported, int type, CUdevice ordinal)
{
    (void)type, (void)ordinal;
    *supported = 0;
    return CUDA_SUCCESS;
}
