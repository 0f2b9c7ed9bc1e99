#include <stdlib.h>

#include "accounting.h"
#include "address_space.h"
#include "allocation.h"
#include "device.h"
#include "driver.h"
#include "log.h"
#include "physical.h"
#include "rm.h"

struct reservation {
    uint64_t address, bytes;
    struct reservation *next;
};

static struct reservation *reservations;

static bool is_granular(uint64_t bytes)
{
    return bytes && bytes % GRANULE_BYTES == 0;
}

static bool is_reserved(uint64_t address, uint64_t bytes)
{
    for (struct reservation *reservation = reservations; reservation; reservation = reservation->next) {
        uint64_t offset_bytes = address - reservation->address;
        if (address >= reservation->address && offset_bytes <= reservation->bytes
            && bytes <= reservation->bytes - offset_bytes)
            return true;
    }
    return false;
}

/* ---- addresses ---- */

DRIVER_API(cuMemAddressReserve)(
    CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    (void)hint, (void)flags;
    if (!is_granular(bytes) || (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t start = address_space_take(bytes, alignment);
    if (start) {
        struct reservation *reservation = driver_record(sizeof *reservation);
        *reservation = (struct reservation){.address = start, .bytes = bytes, .next = reservations};
        reservations = reservation;
        *address = start;
    }
    driver_leave();
    result = start ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    log_line(LOG_CALLS, "cuMemAddressReserve(%zu) = %d", bytes, result);
    return result;
}

static CUresult free_reservation(CUdeviceptr address, size_t bytes)
{
    struct reservation **link = &reservations;
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    struct reservation *reservation = *link;
    if (!reservation || reservation->bytes != bytes || allocation_overlaps(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    address_space_give(address, bytes);
    *link = reservation->next;
    free(reservation);
    return CUDA_SUCCESS;
}

DRIVER_API(cuMemAddressFree)(CUdeviceptr address, size_t bytes)
{
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        result = free_reservation(address, bytes);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuMemAddressFree(%#lx, %zu) = %d", address, bytes, result);
    return result;
}

/* ---- handles ---- */

static CUresult create(CUmemGenericAllocationHandle *handle, uint64_t bytes, const CUmemAllocationProp *properties)
{
    if (!is_granular(bytes) || !properties || properties->type != ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    /* As on a system where programs have no access to a fabric channel. */
    if (properties->requested_handle_types & HANDLE_TYPE_FABRIC)
        return CUDA_ERROR_NOT_PERMITTED;
    int device = 0;
    int place = properties->location.type;
    bool on_device = place == LOCATION_DEVICE;
    bool on_host = place >= LOCATION_HOST && place <= LOCATION_HOST_NUMA_CURRENT;
    if (!on_device && !on_host)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = on_device ? device_of_ordinal(properties->location.id, &device) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    struct physical *physical;
    result = physical_create(on_device ? PHYSICAL_DEVICE : PHYSICAL_HOST, device, bytes, &physical);
    if (result == CUDA_SUCCESS) {
        physical->properties = *properties;
        *handle = physical->handle;
    }
    return result;
}

DRIVER_API(cuMemCreate)(
    CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags)
{
    (void)flags;
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        result = create(handle, bytes, properties);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuMemCreate(%zu) = %d", bytes, result);
    return accounting_outcome(result);
}

static CUresult enter_handle(CUmemGenericAllocationHandle handle, struct physical **physical)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    *physical = physical_of_handle(handle);
    if (*physical)
        return CUDA_SUCCESS;
    driver_leave();
    return CUDA_ERROR_INVALID_VALUE;
}

DRIVER_API(cuMemRelease)(CUmemGenericAllocationHandle handle)
{
    struct physical *physical;
    CUresult result = enter_handle(handle, &physical);
    if (result == CUDA_SUCCESS) {
        physical_release(physical);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuMemRelease(%lu) = %d", handle, result);
    return result;
}

DRIVER_API(cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct allocation *mapping = allocation_containing((uint64_t)address);
    if (mapping && mapping->kind == ALLOCATION_MAPPING) {
        physical_retain(mapping->physical);
        *handle = mapping->physical->handle;
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    driver_leave();
    return result;
}

DRIVER_API(cuMemGetAllocationPropertiesFromHandle)(
    CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
    struct physical *physical;
    CUresult result = enter_handle(handle, &physical);
    if (result == CUDA_SUCCESS) {
        *properties = physical->properties;
        driver_leave();
    }
    return result;
}

DRIVER_API(cuMemGetAllocationGranularity)(size_t *granularity, const CUmemAllocationProp *properties, int option)
{
    (void)properties, (void)option;
    *granularity = GRANULE_BYTES;
    return CUDA_SUCCESS;
}

/* ---- mappings ---- */

static CUresult map(uint64_t address, uint64_t bytes, uint64_t offset_bytes, struct physical *physical)
{
    bool fits = offset_bytes <= physical->bytes && bytes <= physical->bytes - offset_bytes;
    bool aligned = is_granular(bytes) && offset_bytes % GRANULE_BYTES == 0 && address % GRANULE_BYTES == 0;
    if (!fits || !aligned || !is_reserved(address, bytes) || allocation_overlaps(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    struct allocation mapping = {
        .kind = ALLOCATION_MAPPING, .address = address, .bytes = bytes, .device = physical->device,
        .physical = physical};
    allocation_insert(&mapping);
    physical_map(physical);
    if (physical_object(physical))
        rm_map(physical_object(physical), address, bytes, offset_bytes);
    return CUDA_SUCCESS;
}

DRIVER_API(cuMemMap)(
    CUdeviceptr address, size_t bytes, size_t offset_bytes, CUmemGenericAllocationHandle handle,
    unsigned long long flags)
{
    (void)flags;
    struct physical *physical;
    CUresult result = enter_handle(handle, &physical);
    if (result == CUDA_SUCCESS) {
        result = map(address, bytes, offset_bytes, physical);
        driver_leave();
    }
    log_line(LOG_CALLS, "cuMemMap(%#lx, %zu, handle %lu) = %d", address, bytes, handle, result);
    return result;
}

/* Whether the range consists of whole mappings without a gap. */
static bool is_whole_mappings(uint64_t address, uint64_t bytes)
{
    uint64_t next = address;
    while (next < address + bytes) {
        struct allocation *mapping = allocation_at(next);
        if (!mapping || mapping->kind != ALLOCATION_MAPPING)
            return false;
        next += mapping->bytes;
    }
    return bytes && next == address + bytes;
}

/* Whether every address of the range is mapped, even if mappings extend beyond it. */
static bool is_mapped(uint64_t address, uint64_t bytes)
{
    uint64_t next = address;
    while (next < address + bytes) {
        struct allocation *mapping = allocation_containing(next);
        if (!mapping || mapping->kind != ALLOCATION_MAPPING)
            return false;
        next = mapping->address + mapping->bytes;
    }
    return bytes != 0;
}

static void unmap(uint64_t address, uint64_t bytes)
{
    uint64_t end = address + bytes;
    while (address < end) {
        struct allocation *mapping = allocation_at(address);
        struct physical *physical = mapping->physical;
        if (physical_object(physical))
            rm_unmap(mapping->address, mapping->bytes);
        address += mapping->bytes;
        address_space_discard(mapping->address, mapping->bytes);
        allocation_remove(mapping);
        physical_unmap(physical);
    }
}

DRIVER_API(cuMemUnmap)(CUdeviceptr address, size_t bytes)
{
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        if (is_whole_mappings(address, bytes))
            unmap(address, bytes);
        else
            result = CUDA_ERROR_INVALID_VALUE;
        driver_leave();
    }
    log_line(LOG_CALLS, "cuMemUnmap(%#lx, %zu) = %d", address, bytes, result);
    return result;
}

DRIVER_API(cuMemSetAccess)(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    (void)access, (void)count;
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        result = is_mapped(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        driver_leave();
    }
    return result;
}

DRIVER_API(cuMemGetAccess)(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
    (void)location, (void)address;
    *flags = ACCESS_READ_WRITE;
    return driver_check();
}
