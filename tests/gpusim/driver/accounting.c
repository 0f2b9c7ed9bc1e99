#include "accounting.h"

#include "driver.h"

static struct ledger *ledger;
static struct ledger_process *own;
static struct process_identity identity; /* of the process that has, or had, the slot */

CUresult accounting_start(void)
{
    ledger = ledger_open();
    if (!ledger)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (ledger->device_count == 0)
        return CUDA_ERROR_NO_DEVICE;
    own = ledger_claim_slot(ledger);
    if (own)
        identity = own->identity;
    return own ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void accounting_end(void)
{
    if (own)
        ledger_clear_slot(ledger, own);
    own = NULL;
}

void accounting_disown(void)
{
    own = NULL;
    ledger_inherit(ledger, &identity);
}

const struct ledger *accounting_ledger(void)
{
    return ledger;
}

static void store(uint64_t *field, uint64_t value)
{
    __atomic_store_n(field, value, __ATOMIC_RELAXED);
}

static void raise_to(uint64_t *peak, uint64_t value)
{
    if (value > *peak)
        store(peak, value);
}

bool accounting_occupy(int device, uint64_t bytes)
{
    uint64_t usable_bytes = ledger_usable_bytes(ledger, device);
    if (bytes > usable_bytes)
        return false;
    ledger_lock(ledger);
    bool fits = ledger_used_bytes(ledger, device) <= usable_bytes - bytes;
    if (!fits) {
        ledger_reap(ledger);
        fits = ledger_used_bytes(ledger, device) <= usable_bytes - bytes;
    }
    if (fits)
        __atomic_fetch_add(&own->devices[device].used_bytes, bytes, __ATOMIC_RELAXED);
    ledger_unlock(ledger);
    return fits;
}

void accounting_kernel(uint64_t end_ns, uint64_t takes_ns)
{
    struct ledger_process *slot = own;
    if (!slot)
        return;
    __atomic_fetch_add(&slot->kernel_ns, takes_ns, __ATOMIC_RELAXED);
    store(&slot->kernel_end_ns, end_ns);
}

void accounting_vacate(int device, uint64_t bytes)
{
    __atomic_fetch_sub(&own->devices[device].used_bytes, bytes, __ATOMIC_RELAXED);
}

void accounting_import(int device, const struct shared_description *description, uint32_t object)
{
    struct ledger_import import = {
        .importer = identity, .exporter = description->tgid, .source = description->object, .object = object,
        .device = device, .bytes = round_up(description->bytes, GRANULE_BYTES)};
    ledger_import(ledger, import);
}

void accounting_drop_import(uint32_t object)
{
    ledger_drop_import(ledger, &identity, object);
}

void accounting_give_up(uint32_t object)
{
    ledger_give_up(ledger, identity.tgid, object);
}

uint32_t accounting_new_client(void)
{
    enum { FIRST_CLIENT = 0xc1d00000, CLIENTS = 0x10000 };
    return FIRST_CLIENT + (uint32_t)((__atomic_fetch_add(&ledger->clients, 1, __ATOMIC_RELAXED) + 1) % CLIENTS);
}

uint64_t accounting_device_used_bytes(int device)
{
    ledger_lock(ledger);
    ledger_reap(ledger);
    uint64_t used_bytes = ledger_used_bytes(ledger, device);
    ledger_unlock(ledger);
    return used_bytes;
}

void accounting_context_opened(int device)
{
    store(&own->devices[device].contexts, own->devices[device].contexts + 1);
}

void accounting_context_closed(int device)
{
    store(&own->devices[device].contexts, own->devices[device].contexts - 1);
}

void accounting_context_resized(int device, int64_t more_bytes)
{
    struct ledger_device *entry = &own->devices[device];
    store(&entry->context_bytes, entry->context_bytes + (uint64_t)more_bytes);
}

static bool is_owned(enum ledger_kind kind)
{
    return kind == LEDGER_DEVICE || kind == LEDGER_POOL_USED || kind == LEDGER_PHYSICAL || kind == LEDGER_ARRAY;
}

void accounting_add(int device, enum ledger_kind kind, uint64_t bytes)
{
    struct ledger_device *entry = &own->devices[device];
    struct ledger_balance *balance = &entry->kinds[kind];
    store(&balance->live_bytes, balance->live_bytes + bytes);
    raise_to(&balance->peak_live_bytes, balance->live_bytes);
    if (is_owned(kind)) {
        store(&entry->owned_live_bytes, entry->owned_live_bytes + bytes);
        raise_to(&entry->peak_owned_bytes, entry->owned_live_bytes);
    }
}

void accounting_remove(int device, enum ledger_kind kind, uint64_t bytes)
{
    struct ledger_device *entry = &own->devices[device];
    store(&entry->kinds[kind].live_bytes, entry->kinds[kind].live_bytes - bytes);
    if (is_owned(kind))
        store(&entry->owned_live_bytes, entry->owned_live_bytes - bytes);
}

void accounting_allocated(int device, enum ledger_kind kind, uint64_t bytes)
{
    accounting_add(device, kind, bytes);
    own->devices[device].kinds[kind].allocations++;
    own->allocations++;
}

void accounting_freed(int device, enum ledger_kind kind, uint64_t bytes)
{
    accounting_remove(device, kind, bytes);
    own->devices[device].kinds[kind].frees++;
    own->frees++;
}

void accounting_host_allocated(enum ledger_host_kind kind, uint64_t bytes)
{
    store(&own->host_bytes[kind], own->host_bytes[kind] + bytes);
    own->allocations++;
}

void accounting_host_freed(enum ledger_host_kind kind, uint64_t bytes)
{
    accounting_host_dropped(kind, bytes);
    own->frees++;
}

void accounting_host_dropped(enum ledger_host_kind kind, uint64_t bytes)
{
    store(&own->host_bytes[kind], own->host_bytes[kind] - bytes);
}

static bool fits_again(const struct ledger_process *process)
{
    for (int device = 0; device < (int)ledger->device_count; device++)
        if (ledger_used_bytes(ledger, device) + process->devices[device].used_bytes > ledger_usable_bytes(ledger, device))
            return false;
    return true;
}

CUresult accounting_suspend(int tgid, bool suspended)
{
    CUresult result = CUDA_SUCCESS;
    ledger_lock(ledger);
    struct ledger_process *process = ledger_find(ledger, tgid);
    if (!process)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (process->suspended == (uint64_t)suspended)
        result = CUDA_ERROR_ILLEGAL_STATE;
    else if (!suspended && !fits_again(process))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else
        store(&process->suspended, suspended);
    ledger_unlock(ledger);
    return result;
}

CUresult accounting_outcome(CUresult result)
{
    struct ledger_process *entry = own;
    if (result != CUDA_SUCCESS && entry)
        __atomic_fetch_add(&entry->failures, 1, __ATOMIC_RELAXED);
    return result;
}
