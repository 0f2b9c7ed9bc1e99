#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "settings.h"

static const char *ledger_path(void)
{
    const char *path = getenv("GPUSIM_LEDGER");
    return path && *path ? path : LEDGER_DEFAULT_PATH;
}

/* Opens without O_CREAT first: in a sticky directory the kernel refuses O_CREAT on another user's file. */
static int open_file(const char *path)
{
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 && errno == ENOENT) {
        file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (file >= 0 && fchmod(file, 0666) != 0)
            log_line(LOG_UNSUPPORTED, "%s stays closed to other users: %s", path, strerror(errno));
    }
    return file;
}

static void write_devices(struct ledger *ledger)
{
    uint64_t devices = settings_number("GPUSIM_DEVICES", 1);
    ledger->mig = settings_number("GPUSIM_MIG", 0) != 0;
    uint64_t total_bytes = settings_number("GPUSIM_TOTAL_MB", ledger->mig ? 9856 : 81559) * MEBIBYTE;
    ledger->reserved_bytes = settings_number("GPUSIM_RESERVED_MB", 0) * MEBIBYTE;
    ledger->context_device_bytes = settings_number("GPUSIM_CONTEXT_DEVICE_KB", 0) * 1024;
    static const uint8_t pattern[16] = {0xA0, 'g', 'p', 'u', 's', 'i', 0x4d, 0x00, 0x80};
    memcpy(ledger->parent_uuid, pattern, sizeof pattern);
    ledger->parent_uuid[0] = 0xB0;
    ledger->device_count = devices < LEDGER_DEVICES ? (uint32_t)devices : LEDGER_DEVICES;
    for (int device = 0; device < LEDGER_DEVICES; device++) {
        memcpy(ledger->uuid[device], pattern, sizeof pattern);
        ledger->uuid[device][0] = (uint8_t)(0xA0 + device);
        ledger->uuid[device][15] = (uint8_t)device;
        ledger->total_bytes[device] = total_bytes;
    }
}

static void initialise(struct ledger *ledger)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&ledger->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    write_devices(ledger);
    ledger->slot_count = LEDGER_SLOTS;
    ledger->process_bytes = sizeof(struct ledger_process);
    ledger->version = LEDGER_VERSION;
    ledger->magic = LEDGER_MAGIC;
}

static bool layout_matches(const struct ledger *ledger)
{
    return ledger->magic == LEDGER_MAGIC && ledger->version == LEDGER_VERSION && ledger->slot_count == LEDGER_SLOTS
        && ledger->process_bytes == sizeof(struct ledger_process);
}

static struct ledger *map_file(int file, const char *path)
{
    struct stat information;
    if (fstat(file, &information) != 0)
        return NULL;
    bool fresh = information.st_size == 0;
    if (fresh && ftruncate(file, sizeof(struct ledger)) != 0)
        return NULL;
    if (!fresh && information.st_size != sizeof(struct ledger)) {
        log_line(LOG_ALWAYS, "%s is no ledger of this version: remove it", path);
        return NULL;
    }
    struct ledger *ledger = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (ledger == MAP_FAILED) {
        log_line(LOG_ALWAYS, "cannot map %s: %s", path, strerror(errno));
        return NULL;
    }
    if (fresh)
        initialise(ledger);
    if (!layout_matches(ledger)) {
        log_line(LOG_ALWAYS, "%s is no ledger of this version: remove it", path);
        munmap(ledger, sizeof *ledger);
        return NULL;
    }
    return ledger;
}

struct ledger *ledger_open(void)
{
    const char *path = ledger_path();
    int file = open_file(path);
    if (file < 0) {
        log_line(LOG_ALWAYS, "cannot open the ledger %s: %s", path, strerror(errno));
        return NULL;
    }
    /* Unlocks explicitly: the mapping keeps the open file, and its lock, after the close. */
    flock(file, LOCK_EX);
    struct ledger *ledger = map_file(file, path);
    flock(file, LOCK_UN);
    close(file);
    return ledger;
}

void ledger_lock(struct ledger *ledger)
{
    /* No derived values are stored outside the slots, so no repair is needed after a holder was killed. */
    if (pthread_mutex_lock(&ledger->mutex) == EOWNERDEAD)
        pthread_mutex_consistent(&ledger->mutex);
}

void ledger_unlock(struct ledger *ledger)
{
    pthread_mutex_unlock(&ledger->mutex);
}

static bool is_same(const struct process_identity *one, const struct process_identity *other)
{
    return one->tgid == other->tgid && one->start_time_ticks == other->start_time_ticks
        && one->pid_namespace == other->pid_namespace;
}

static struct ledger_process *slot_of(struct ledger *ledger, const struct process_identity *identity)
{
    for (uint32_t slot = 0; slot < ledger->slot_bound; slot++)
        if (is_same(&ledger->processes[slot].identity, identity))
            return &ledger->processes[slot];
    return NULL;
}

static bool is_charged(const struct ledger *ledger, int exporter, uint32_t source)
{
    for (int row = 0; row < LEDGER_IMPORTS; row++) {
        const struct ledger_import *import = &ledger->imports[row];
        if (import->importer.tgid != 0 && import->exporter == exporter && import->source == source && import->is_charged)
            return true;
    }
    return false;
}

/* Charges an exporter's object, or all its objects if `source` is 0, to the first importer. */
static void hand_on(struct ledger *ledger, int exporter, uint32_t source)
{
    for (int row = 0; row < LEDGER_IMPORTS; row++) {
        struct ledger_import *import = &ledger->imports[row];
        if (import->importer.tgid == 0 || import->exporter != exporter || (source && import->source != source))
            continue;
        struct ledger_process *importer = slot_of(ledger, &import->importer);
        if (!importer || is_charged(ledger, exporter, import->source))
            continue;
        import->is_charged = 1;
        __atomic_fetch_add(&importer->devices[import->device].used_bytes, import->bytes, __ATOMIC_RELAXED);
    }
}

static void drop_import(struct ledger *ledger, struct ledger_import *import)
{
    struct ledger_import dropped = *import;
    memset(import, 0, sizeof *import);
    if (!dropped.is_charged)
        return;
    struct ledger_process *importer = slot_of(ledger, &dropped.importer);
    if (importer)
        __atomic_fetch_sub(&importer->devices[dropped.device].used_bytes, dropped.bytes, __ATOMIC_RELAXED);
    hand_on(ledger, dropped.exporter, dropped.source);
}

static void clear(struct ledger *ledger, struct ledger_process *process)
{
    struct process_identity gone = process->identity;
    memset(process, 0, sizeof *process);
    if (gone.tgid == 0)
        return;
    for (int row = 0; row < LEDGER_IMPORTS; row++)
        if (is_same(&ledger->imports[row].importer, &gone))
            drop_import(ledger, &ledger->imports[row]);
    hand_on(ledger, gone.tgid, 0);
}

/* If the kernel hides the start of the stack, an exec is detected only here. */
static void clear_earlier_image(struct ledger *ledger, const struct process_identity *identity)
{
    for (uint32_t slot = 0; slot < ledger->slot_bound; slot++) {
        struct ledger_process *process = &ledger->processes[slot];
        if (process->identity.tgid == identity->tgid && process->identity.pid_namespace == identity->pid_namespace)
            clear(ledger, process);
    }
}

struct ledger_process *ledger_claim_slot(struct ledger *ledger)
{
    struct process_identity identity = identity_of_this_process();
    ledger_lock(ledger);
    ledger_reap(ledger);
    clear_earlier_image(ledger, &identity);
    uint32_t slot = 0;
    while (slot < LEDGER_SLOTS && ledger->processes[slot].identity.tgid != 0)
        slot++;
    struct ledger_process *claimed = slot < LEDGER_SLOTS ? &ledger->processes[slot] : NULL;
    if (claimed) {
        clear(ledger, claimed);
        claimed->identity = identity;
        if (slot >= ledger->slot_bound)
            ledger->slot_bound = slot + 1;
    }
    ledger_unlock(ledger);
    return claimed;
}

/* Also frees the rows of children that have exited. */
static bool has_heir(struct ledger *ledger, const struct process_identity *parent)
{
    bool found = false;
    for (int row = 0; row < LEDGER_HEIRS; row++) {
        struct ledger_heir *heir = &ledger->heirs[row];
        if (heir->parent.tgid == 0 || !is_same(&heir->parent, parent))
            continue;
        if (identity_is_alive(&heir->child))
            found = true;
        else
            memset(heir, 0, sizeof *heir);
    }
    return found;
}

void ledger_inherit(struct ledger *ledger, const struct process_identity *parent)
{
    struct process_identity child = identity_of_this_process();
    ledger_lock(ledger);
    int row = 0;
    while (row < LEDGER_HEIRS && ledger->heirs[row].parent.tgid != 0 && identity_is_alive(&ledger->heirs[row].child))
        row++;
    if (row < LEDGER_HEIRS)
        ledger->heirs[row] = (struct ledger_heir){.parent = *parent, .child = child};
    ledger_unlock(ledger);
}

void ledger_clear_slot(struct ledger *ledger, struct ledger_process *process)
{
    ledger_lock(ledger);
    if (!has_heir(ledger, &process->identity))
        clear(ledger, process);
    ledger_unlock(ledger);
}

void ledger_reap(struct ledger *ledger)
{
    for (uint32_t slot = 0; slot < ledger->slot_bound; slot++) {
        struct ledger_process *process = &ledger->processes[slot];
        bool is_gone = process->identity.tgid != 0 && !identity_is_alive(&process->identity);
        if (is_gone && !has_heir(ledger, &process->identity))
            clear(ledger, process);
    }
}

void ledger_import(struct ledger *ledger, struct ledger_import import)
{
    ledger_lock(ledger);
    int row = 0;
    while (row < LEDGER_IMPORTS && ledger->imports[row].importer.tgid != 0)
        row++;
    if (row < LEDGER_IMPORTS)
        ledger->imports[row] = import;
    else
        log_line(LOG_ALWAYS, "more than %d imports", LEDGER_IMPORTS);
    ledger_unlock(ledger);
}

void ledger_drop_import(struct ledger *ledger, const struct process_identity *importer, uint32_t object)
{
    ledger_lock(ledger);
    for (int row = 0; row < LEDGER_IMPORTS; row++)
        if (ledger->imports[row].object == object && is_same(&ledger->imports[row].importer, importer))
            drop_import(ledger, &ledger->imports[row]);
    ledger_unlock(ledger);
}

void ledger_give_up(struct ledger *ledger, int tgid, uint32_t object)
{
    ledger_lock(ledger);
    hand_on(ledger, tgid, object);
    ledger_unlock(ledger);
}

struct ledger_process *ledger_find(struct ledger *ledger, int tgid)
{
    ledger_reap(ledger);
    for (uint32_t slot = 0; slot < ledger->slot_bound; slot++)
        if (ledger->processes[slot].identity.tgid == tgid)
            return &ledger->processes[slot];
    return NULL;
}

uint64_t ledger_usable_bytes(const struct ledger *ledger, int device)
{
    uint64_t total_bytes = ledger->total_bytes[device];
    return total_bytes > ledger->reserved_bytes ? total_bytes - ledger->reserved_bytes : 0;
}

uint64_t ledger_used_bytes(const struct ledger *ledger, int device)
{
    uint64_t used_bytes = 0;
    for (uint32_t slot = 0; slot < ledger->slot_bound; slot++) {
        const struct ledger_process *process = &ledger->processes[slot];
        const struct ledger_device *entry = &process->devices[device];
        if (process->identity.tgid == 0 || process->suspended)
            continue;
        used_bytes += __atomic_load_n(&entry->used_bytes, __ATOMIC_RELAXED);
        used_bytes += __atomic_load_n(&entry->contexts, __ATOMIC_RELAXED) * ledger->context_device_bytes;
    }
    return used_bytes;
}
