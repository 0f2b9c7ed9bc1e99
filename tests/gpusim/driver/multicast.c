/* Multicast objects: their handles are numbered with those of physical memory, but they have no memory. */
#include <stdlib.h>

#include "allocation.h"
#include "driver.h"
#include "physical.h"

struct binding {
    CUmemGenericAllocationHandle multicast;
    CUdevice ordinal;
    uint64_t offset_bytes, bytes;
    struct physical *bound;
    struct binding *next;
};

static struct binding *bindings;

DRIVER_API(cuMulticastCreate)(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties)
{
    if (!properties->size_bytes || properties->size_bytes % GRANULE_BYTES != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct physical *object;
    result = physical_create(PHYSICAL_MULTICAST, 0, properties->size_bytes, &object);
    if (result == CUDA_SUCCESS)
        *handle = object->handle;
    driver_leave();
    return result;
}

static bool is_multicast(CUmemGenericAllocationHandle handle)
{
    struct physical *object = physical_of_handle(handle);
    return object && object->kind == PHYSICAL_MULTICAST;
}

DRIVER_API(cuMulticastAddDevice)(CUmemGenericAllocationHandle handle, CUdevice ordinal)
{
    (void)ordinal;
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        result = is_multicast(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        driver_leave();
    }
    return result;
}

static CUresult bind(const struct binding *wanted)
{
    bool valid = is_multicast(wanted->multicast) && wanted->bound && wanted->bound->kind != PHYSICAL_MULTICAST;
    if (!valid)
        return CUDA_ERROR_INVALID_VALUE;
    struct binding *binding = driver_record(sizeof *binding);
    *binding = *wanted;
    binding->next = bindings;
    bindings = binding;
    physical_map(binding->bound);
    return CUDA_SUCCESS;
}

DRIVER_API(cuMulticastBindMem_v2)(
    CUmemGenericAllocationHandle multicast, CUdevice ordinal, size_t multicast_offset,
    CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes, unsigned long long flags)
{
    (void)memory_offset, (void)flags;
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct binding binding = {
        .multicast = multicast, .ordinal = ordinal, .offset_bytes = multicast_offset, .bytes = bytes,
        .bound = physical_of_handle(memory)};
    result = bind(&binding);
    driver_leave();
    return result;
}

DRIVER_API(cuMulticastBindMem)(
    CUmemGenericAllocationHandle multicast, size_t multicast_offset, CUmemGenericAllocationHandle memory,
    size_t memory_offset, size_t bytes, unsigned long long flags)
{
    return sim_cuMulticastBindMem_v2(multicast, 0, multicast_offset, memory, memory_offset, bytes, flags);
}

DRIVER_API(cuMulticastBindAddr_v2)(
    CUmemGenericAllocationHandle multicast, CUdevice ordinal, size_t multicast_offset, CUdeviceptr address,
    size_t bytes, unsigned long long flags)
{
    (void)flags;
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct allocation *mapping = allocation_containing(address);
    struct binding binding = {
        .multicast = multicast, .ordinal = ordinal, .offset_bytes = multicast_offset, .bytes = bytes,
        .bound = mapping && mapping->kind == ALLOCATION_MAPPING ? mapping->physical : NULL};
    result = bind(&binding);
    driver_leave();
    return result;
}

DRIVER_API(cuMulticastBindAddr)(
    CUmemGenericAllocationHandle multicast, size_t multicast_offset, CUdeviceptr address, size_t bytes,
    unsigned long long flags)
{
    return sim_cuMulticastBindAddr_v2(multicast, 0, multicast_offset, address, bytes, flags);
}

DRIVER_API(cuMulticastUnbind)(
    CUmemGenericAllocationHandle multicast, CUdevice ordinal, size_t offset_bytes, size_t bytes)
{
    (void)ordinal;
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = CUDA_ERROR_INVALID_VALUE;
    for (struct binding **link = &bindings; *link;) {
        struct binding *binding = *link;
        bool inside = binding->multicast == multicast && binding->offset_bytes >= offset_bytes
            && binding->offset_bytes + binding->bytes <= offset_bytes + bytes;
        if (!inside) {
            link = &binding->next;
            continue;
        }
        *link = binding->next;
        physical_unmap(binding->bound);
        free(binding);
        result = CUDA_SUCCESS;
    }
    driver_leave();
    return result;
}

DRIVER_API(cuMulticastGetGranularity)(size_t *granularity, const CUmulticastObjectProp *properties, int option)
{
    (void)properties, (void)option;
    *granularity = GRANULE_BYTES;
    return CUDA_SUCCESS;
}
