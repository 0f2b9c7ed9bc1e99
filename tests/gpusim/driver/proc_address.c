#include <stddef.h>
#include <string.h>

#include "log.h"
#include "proc_table.h"

static bool wants_row(const struct proc_address *row, const char *base, int version, bool per_thread)
{
    return row->per_thread == per_thread && row->since <= version && strcmp(row->base, base) == 0;
}

/* The newest revision that this CUDA version includes. */
static const struct proc_address *newest(const char *base, int version, bool per_thread)
{
    const struct proc_address *found = NULL;
    for (size_t index = 0; index < proc_address_count; index++) {
        const struct proc_address *row = &proc_addresses[index];
        if (wants_row(row, base, version, per_thread) && (!found || row->since >= found->since))
            found = row;
    }
    return found;
}

static const struct proc_address *with_symbol(const char *symbol)
{
    for (size_t index = 0; index < proc_address_count; index++)
        if (strcmp(proc_addresses[index].symbol, symbol) == 0)
            return &proc_addresses[index];
    return NULL;
}

static bool is_base(const char *name)
{
    for (size_t index = 0; index < proc_address_count; index++)
        if (strcmp(proc_addresses[index].base, name) == 0)
            return true;
    return false;
}

/* A function without a per-thread variant has one entry for both kinds of stream. */
static CUdriverProcAddressQueryResult look_up(const char *name, int version, uint64_t flags, void **address)
{
    const struct proc_address *row = NULL;
    if (flags & PROC_ADDRESS_PER_THREAD_STREAM)
        row = newest(name, version, true);
    if (!row)
        row = newest(name, version, false);
    if (!row && !is_base(name))
        row = with_symbol(name);
    if (!row)
        return is_base(name) ? PROC_ADDRESS_VERSION_NOT_SUFFICIENT : PROC_ADDRESS_SYMBOL_NOT_FOUND;
    *address = row->address;
    log_line(LOG_EVERYTHING, "proc address %s@%d -> %s", name, version, row->symbol);
    return PROC_ADDRESS_FOUND;
}

DRIVER_API(cuGetProcAddress_v2)(
    const char *name, void **address, int version, uint64_t flags, CUdriverProcAddressQueryResult *status_out)
{
    if (!name || !address)
        return CUDA_ERROR_INVALID_VALUE;
    *address = NULL;
    CUdriverProcAddressQueryResult status = look_up(name, version, flags, address);
    if (status_out)
        *status_out = status;
    if (status == PROC_ADDRESS_FOUND)
        return CUDA_SUCCESS;
    log_line(LOG_UNSUPPORTED, "no proc address %s for version %d", name, version);
    return CUDA_ERROR_NOT_FOUND;
}

DRIVER_API(cuGetProcAddress)(const char *name, void **address, int version, uint64_t flags)
{
    return sim_cuGetProcAddress_v2(name, address, version, flags, NULL);
}

/* Export tables are private to NVIDIA's libraries: none is provided. */
DRIVER_API(cuGetExportTable)(const void **table, const CUuuid *identity)
{
    (void)identity;
    if (table)
        *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

/* Called by every exported function without an implementation. */
__attribute__((visibility("hidden"))) CUresult gpusim_unsupported(const char *symbol)
{
    log_line(LOG_UNSUPPORTED, "%s is not simulated", symbol);
    return CUDA_ERROR_NOT_SUPPORTED;
}
