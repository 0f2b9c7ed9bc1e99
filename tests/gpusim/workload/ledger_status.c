#include "ledger_status.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ledger.h"

struct text {
    char *start;
    size_t room, length;
};

static void add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(text->start + text->length, text->room - text->length, format, arguments);
    va_end(arguments);
    text->length += (size_t)written;
    if (text->length >= text->room)
        text->length = text->room - 1;
}

static bool read_process(int file, int tgid, struct ledger_process *process, uint32_t *devices)
{
    struct ledger header;
    if (pread(file, &header, offsetof(struct ledger, processes), 0) != (ssize_t)offsetof(struct ledger, processes))
        return false;
    *devices = header.device_count;
    for (uint32_t slot = 0; slot < header.slot_bound; slot++) {
        off_t offset = (off_t)(offsetof(struct ledger, processes) + slot * sizeof *process);
        if (pread(file, process, sizeof *process, offset) == (ssize_t)sizeof *process && process->identity.tgid == tgid)
            return true;
    }
    return false;
}

static void add_device(struct text *text, const struct ledger_device *device)
{
    static const char *const names[LEDGER_KINDS] = {
        "device", "pool_used", "pool_backed", "physical", "managed", "array", "graph"};
    add(text, "{\"used_bytes\":%lu,\"context_bytes\":%lu,\"contexts\":%lu", device->used_bytes, device->context_bytes,
        device->contexts);
    add(text, ",\"owned_live_bytes\":%lu,\"peak_owned_bytes\":%lu", device->owned_live_bytes, device->peak_owned_bytes);
    for (int kind = 0; kind < LEDGER_KINDS; kind++) {
        const struct ledger_balance *balance = &device->kinds[kind];
        add(text, ",\"%s\":{\"live_bytes\":%lu,\"peak_live_bytes\":%lu,\"allocations\":%lu,\"frees\":%lu}", names[kind],
            balance->live_bytes, balance->peak_live_bytes, balance->allocations, balance->frees);
    }
    add(text, "}");
}

bool ledger_status(int tgid, char *json, size_t room)
{
    const char *path = getenv("GPUSIM_LEDGER");
    int file = open(path && *path ? path : LEDGER_DEFAULT_PATH, O_RDONLY | O_CLOEXEC);
    struct ledger_process process;
    uint32_t devices;
    bool found = file >= 0 && read_process(file, tgid, &process, &devices);
    if (file >= 0)
        close(file);
    if (!found)
        return false;
    struct text text = {.start = json, .room = room};
    add(&text, "{\"tgid\":%d,\"allocations\":%lu,\"frees\":%lu,\"failures\":%lu", tgid, process.allocations,
        process.frees, process.failures);
    add(&text, ",\"pinned_host_bytes\":%lu,\"registered_host_bytes\":%lu,\"physical_host_bytes\":%lu,\"devices\":[",
        process.host_bytes[LEDGER_HOST_PINNED], process.host_bytes[LEDGER_HOST_REGISTERED],
        process.host_bytes[LEDGER_HOST_PHYSICAL]);
    for (uint32_t device = 0; device < devices; device++) {
        add(&text, "%s", device ? "," : "");
        add_device(&text, &process.devices[device]);
    }
    add(&text, "]}");
    return true;
}
