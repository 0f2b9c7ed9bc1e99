/*
 * The objects that libcuda creates for a context, in their order, as logged on an H100 80GB with driver 580.159.04: 17 of video
 * memory, 518 MiB in total, host memory, and channels with their engines.
 */
#ifndef GPUSIM_CONTEXT_OBJECTS_H
#define GPUSIM_CONTEXT_OBJECTS_H

#include <stddef.h>
#include <stdint.h>

/* Parent of an object: the latest group or channel before it. */
enum context_parent { BELOW_DEVICE, BELOW_SUBDEVICE, BELOW_GROUP, BELOW_CHANNEL };

enum context_class {
    CLASS_GROUP = 0xa06c,
    CLASS_CHANNEL = 0xc86f,
    CLASS_SUBCONTEXT = 0x9067,
    CLASS_COMPUTE = 0xcbc0,
    CLASS_COPY = 0xc8b5,
    CLASS_EVENT = 0x79,
    CLASS_DEBUGGER = 0x83de,
};

struct context_object {
    uint32_t class;
    enum context_parent below;
    uint64_t asked_bytes; /* of memory */
    uint32_t attr, attr2, flags;
};

extern const struct context_object context_objects[];
extern const size_t context_object_count;

/* MiB of the real context, which are scaled to GPUSIM_CONTEXT_MB. */
#define CONTEXT_MEBIBYTES 518ull

/* Local memory on an H100: for each of 2048 threads on 132 multiprocessors. */
#define RESIDENT_THREADS (132ull * 2048)
#define LOCAL_BYTES_PER_THREAD 1600ull

#endif
