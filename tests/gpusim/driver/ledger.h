/*
 * The ledger: one shared file with the true state of every simulated device.
 *
 * Every process that uses the simulated driver owns one slot and writes only to it; libnvidia-ml and the tests read all
 * slots. The layout is fixed (tests/src/ledger.rs reads it by offset): change LEDGER_VERSION with it. All numbers are in
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
#define LEDGER_VERSION 4u
#define LEDGER_DEVICES 8
#define LEDGER_SLOTS 256
#define LEDGER_HEIRS 256
#define LEDGER_IMPORTS 256
#define LEDGER_DEFAULT_PATH "/dev/shm/gpusim-4.ledger" /* with the version: builds with other layouts have other files */

/* Kinds of device memory. LEDGER_DEVICE, _POOL_USED, _PHYSICAL and _ARRAY together are the process's owned memory. */
enum ledger_kind {
    LEDGER_DEVICE = 0,      /* linear and pitched (pitch * height) memory, as requested */
    LEDGER_POOL_USED = 1,   /* live stream-ordered allocations, as requested */
    LEDGER_POOL_BACKED = 2, /* device memory held by pools, used or not */
    LEDGER_PHYSICAL = 3,    /* cuMemCreate on a device, until the handle and all mappings are released */
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
    uint64_t frees;       /* successful explicit frees, without memory freed with its context */
};

struct ledger_device {
    uint64_t used_bytes;    /* what NVML reports: contexts and backed device memory, in 2 MiB granules */
    uint64_t context_bytes; /* the part of used_bytes that belongs to contexts */
    uint64_t contexts;      /* live contexts; NVML lists the process if there is one */
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
    uint64_t kernel_end_ns;      /* when its last kernel ends or ended: CLOCK_MONOTONIC; 0 while kernels take no time */
    uint64_t kernel_ns;          /* duration of all its kernels, the ones in the queue included */
    struct ledger_device devices[LEDGER_DEVICES];
};

/* A forked child without exec shares its parent's open files of the kernel driver: the parent's memory is kept while the child lives. */
struct ledger_heir {
    struct process_identity parent; /* tgid 0: the row is free */
    struct process_identity child;
};

/* Memory of one process that another has imported: if the exporter frees it or exits, it is charged to the first importer. */
struct ledger_import {
    struct process_identity importer; /* tgid 0: the row is free */
    int32_t exporter;                 /* its tgid */
    uint32_t source, object;          /* of the kernel driver: the exporter's object, and the importer's */
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
    uint32_t slot_bound; /* every used slot has a lower index */
    uint32_t mig;        /* 1: the devices are MIG instances of one GPU */
    uint8_t parent_uuid[16]; /* of that GPU */
    uint64_t reserved_bytes;       /* the part of each device's total that no program can allocate */
    uint64_t context_device_bytes; /* device memory of a context beside the charge of its process */
    uint64_t clients; /* number of kernel-driver clients so far: each client has a unique number */
    uint8_t reserved[184];
    struct ledger_process processes[LEDGER_SLOTS];
    struct ledger_heir heirs[LEDGER_HEIRS];
    struct ledger_import imports[LEDGER_IMPORTS];
};

_Static_assert(sizeof(struct process_identity) == 32, "ledger layout");
_Static_assert(sizeof(struct ledger_balance) == 32, "ledger layout");
_Static_assert(sizeof(struct ledger_device) == 264, "ledger layout");
_Static_assert(sizeof(struct ledger_process) == 2216, "ledger layout");
_Static_assert(offsetof(struct ledger_process, devices) == 104, "ledger layout");
_Static_assert(offsetof(struct ledger, total_bytes) == 24, "ledger layout");
_Static_assert(offsetof(struct ledger, uuid) == 88, "ledger layout");
_Static_assert(offsetof(struct ledger, processes) == 512, "ledger layout");

/*
 * Maps the ledger named by GPUSIM_LEDGER, and creates it if it is missing, with the devices given by GPUSIM_TOTAL_MB, GPUSIM_RESERVED_MB,
 * GPUSIM_CONTEXT_DEVICE_KB, GPUSIM_DEVICES and GPUSIM_MIG. Returns NULL (and logs a line) if it cannot be opened or has another layout.
 */
struct ledger *ledger_open(void);

/* The lock guards slot ownership and the sums over slots. Never held across a call into the program. */
void ledger_lock(struct ledger *ledger);
void ledger_unlock(struct ledger *ledger);

/* Reaps dead processes and gives this process a slot; NULL when all are taken. Takes the lock itself. */
struct ledger_process *ledger_claim_slot(struct ledger *ledger);

/* Records that the process with the slot has forked this process. Takes the lock itself. */
void ledger_inherit(struct ledger *ledger, const struct process_identity *parent);

/* Empties a slot unless a child keeps its memory; ledger_reap empties it later. Takes the lock itself. */
void ledger_clear_slot(struct ledger *ledger, struct ledger_process *process);

/* Empties the slots of processes that have exited together with all children that kept their memory. The caller holds the lock. */
void ledger_reap(struct ledger *ledger);

/* Records that this process imports another's memory. Takes the lock itself. */
void ledger_import(struct ledger *ledger, struct ledger_import import);

/* Removes the import with this object of the importer. Takes the lock itself. */
void ledger_drop_import(struct ledger *ledger, const struct process_identity *importer, uint32_t object);

/* Records that a process has freed an object that others may have imported. Takes the lock itself. */
void ledger_give_up(struct ledger *ledger, int tgid, uint32_t object);

/* The slot of a living process, NULL if there is none. The caller holds the lock. */
struct ledger_process *ledger_find(struct ledger *ledger, int tgid);

/* The part of a device's memory that programs can allocate. */
uint64_t ledger_usable_bytes(const struct ledger *ledger, int device);

/* The part of that used by all processes, except checkpointed ones. The caller holds the lock. */
uint64_t ledger_used_bytes(const struct ledger *ledger, int device);

#endif
