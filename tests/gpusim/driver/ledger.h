/*
 * The ledger: one shared file that holds the truth about every simulated device.
 *
 * Every process that uses the simulated driver owns one slot and writes only that slot; libnvidia-ml and the tests read all
 * of them. The layout is fixed (tests/src/ledger.rs reads it by offset): change LEDGER_VERSION with it. All numbers are in
 * the machine's byte order; all sizes are bytes.
 */
#ifndef GPUSIM_LEDGER_H
#define GPUSIM_LEDGER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "liveness.h"

#define LEDGER_MAGIC 0x31304d4953555047ull /* "GPUSIM01" */
#define LEDGER_VERSION 3u
#define LEDGER_DEVICES 8
#define LEDGER_SLOTS 256
#define LEDGER_HEIRS 256
#define LEDGER_IMPORTS 256
#define LEDGER_DEFAULT_PATH "/dev/shm/gpusim.ledger"

/* What device memory is held as. LEDGER_DEVICE, _POOL_USED, _PHYSICAL and _ARRAY together are the process's owned memory. */
enum ledger_kind {
    LEDGER_DEVICE = 0,      /* linear and pitched (pitch * height) memory, as requested */
    LEDGER_POOL_USED = 1,   /* live stream-ordered allocations, as requested */
    LEDGER_POOL_BACKED = 2, /* what the pools hold of the device, used or not */
    LEDGER_PHYSICAL = 3,    /* cuMemCreate on a device, until handle and mappings are gone */
    LEDGER_MANAGED = 4,     /* managed memory: virtual, never in used_bytes */
    LEDGER_ARRAY = 5,       /* arrays and mipmapped arrays: the texels, without padding */
    LEDGER_GRAPH = 6,       /* backing of the allocations of launched graphs */
    LEDGER_KINDS = 7,
};

enum ledger_host_kind {
    LEDGER_HOST_PINNED = 0,
    LEDGER_HOST_REGISTERED = 1,
    LEDGER_HOST_PHYSICAL = 2, /* cuMemCreate and pools whose location is the host */
    LEDGER_HOST_KINDS = 3,
};

struct ledger_balance {
    uint64_t live_bytes;
    uint64_t peak_live_bytes;
    uint64_t allocations; /* successful calls */
    uint64_t frees;       /* successful explicit frees; memory that went with its context is not counted */
};

struct ledger_device {
    uint64_t used_bytes;    /* what NVML reports: contexts and backed device memory, in 2 MiB granules */
    uint64_t context_bytes; /* the part of used_bytes that contexts take */
    uint64_t contexts;      /* live contexts; NVML lists the process while there is one */
    uint64_t owned_live_bytes;
    uint64_t peak_owned_bytes;
    struct ledger_balance kinds[LEDGER_KINDS];
};

struct ledger_process {
    struct process_identity identity; /* tgid 0: the slot is free */
    uint64_t host_bytes[LEDGER_HOST_KINDS];
    uint64_t allocations, frees; /* over all kinds, host memory included */
    uint64_t failures;           /* allocation calls that returned an error */
    uint64_t suspended;          /* 1: checkpointed, its memory is off the devices */
    uint64_t reserved;
    struct ledger_device devices[LEDGER_DEVICES];
};

/* A forked child that does not exec has its parent's open files of the kernel driver: the parent's memory stays as long as it lives. */
struct ledger_heir {
    struct process_identity parent; /* tgid 0: the row is free */
    struct process_identity child;
};

/* Memory of one process that another has as well: where the first frees it or ends, it is charged to the first of the others. */
struct ledger_import {
    struct process_identity importer; /* tgid 0: the row is free */
    int32_t exporter;                 /* its tgid */
    uint32_t source, object;          /* of the kernel driver: the exporter's, and the importer's own */
    int32_t device;
    uint64_t bytes;     /* granted */
    uint64_t is_charged; /* 1: the importer is charged */
};

struct ledger {
    uint64_t magic;
    uint32_t version;
    uint32_t device_count;
    uint32_t slot_count;
    uint32_t process_bytes; /* sizeof(struct ledger_process) */
    uint64_t total_bytes[LEDGER_DEVICES];
    uint8_t uuid[LEDGER_DEVICES][16];
    union {
        pthread_mutex_t mutex; /* shared between processes and robust: its holder may be killed */
        uint8_t mutex_space[64];
    };
    uint32_t slot_bound; /* every slot in use has a lower index */
    uint32_t mig;        /* 1: the devices are MIG instances of one GPU */
    uint8_t parent_uuid[16]; /* of that GPU */
    uint64_t reserved_bytes;       /* of each device's total: what no program can have */
    uint64_t context_device_bytes; /* what a context takes of its device beside what its process is charged */
    uint64_t clients; /* how many clients of the kernel driver there have been: each has a number of its own */
    uint8_t reserved[184];
    struct ledger_process processes[LEDGER_SLOTS];
    struct ledger_heir heirs[LEDGER_HEIRS];
    struct ledger_import imports[LEDGER_IMPORTS];
};

_Static_assert(sizeof(struct process_identity) == 32, "ledger layout");
_Static_assert(sizeof(struct ledger_balance) == 32, "ledger layout");
_Static_assert(sizeof(struct ledger_device) == 264, "ledger layout");
_Static_assert(sizeof(struct ledger_process) == 2208, "ledger layout");
_Static_assert(offsetof(struct ledger_process, devices) == 96, "ledger layout");
_Static_assert(offsetof(struct ledger, total_bytes) == 24, "ledger layout");
_Static_assert(offsetof(struct ledger, uuid) == 88, "ledger layout");
_Static_assert(offsetof(struct ledger, processes) == 512, "ledger layout");

/*
 * Maps the ledger that GPUSIM_LEDGER names and creates it where it is missing; GPUSIM_TOTAL_MB, GPUSIM_RESERVED_MB,
 * GPUSIM_CONTEXT_DEVICE_KB, GPUSIM_DEVICES and GPUSIM_MIG then give its devices. NULL (and a log line) when it cannot be opened or has another layout.
 */
struct ledger *ledger_open(void);

/* The lock guards slot ownership and the sums over slots. Never held across a call into the program. */
void ledger_lock(struct ledger *ledger);
void ledger_unlock(struct ledger *ledger);

/* Gives this process a slot, dead processes reaped first; NULL when all are taken. Takes the lock itself. */
struct ledger_process *ledger_claim_slot(struct ledger *ledger);

/* This process was forked by the one with the slot. Takes the lock itself. */
void ledger_inherit(struct ledger *ledger, const struct process_identity *parent);

/* Empties a slot, unless a child keeps what is in it: then whoever looks after its end does. Takes the lock itself. */
void ledger_clear_slot(struct ledger *ledger, struct ledger_process *process);

/* Empties the slots of processes that are gone, with all children that kept their memory. The caller holds the lock. */
void ledger_reap(struct ledger *ledger);

/* This process has another's memory as well, from now on. Takes the lock itself. */
void ledger_import(struct ledger *ledger, struct ledger_import import);

/* It has it no longer, by its own object. Takes the lock itself. */
void ledger_drop_import(struct ledger *ledger, const struct process_identity *importer, uint32_t object);

/* A process has freed an object that others may have as well. Takes the lock itself. */
void ledger_give_up(struct ledger *ledger, int tgid, uint32_t object);

/* The slot of a living process, NULL without one. The caller holds the lock. */
struct ledger_process *ledger_find(struct ledger *ledger, int tgid);

/* What programs can have of a device. */
uint64_t ledger_usable_bytes(const struct ledger *ledger, int device);

/* What all processes together use of that, checkpointed ones excepted. The caller holds the lock. */
uint64_t ledger_used_bytes(const struct ledger *ledger, int device);

#endif
