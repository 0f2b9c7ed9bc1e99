/* The process image that owns a slot, and whether it still runs. */
#ifndef GPUSIM_LIVENESS_H
#define GPUSIM_LIVENESS_H

#include <stdbool.h>
#include <stdint.h>

struct process_identity {
    int32_t tgid; /* in the owner's pid namespace */
    uint32_t reserved;
    uint64_t start_time_ticks; /* field 22 of /proc/<tgid>/stat: guards against reuse of the process id */
    uint64_t stack_start;      /* field 28: changes at exec; 0 if the kernel hides it */
    uint64_t pid_namespace;    /* inode of /proc/self/ns/pid */
};

struct process_identity identity_of_this_process(void);

/*
 * Whether the process image with this identity still runs. A zombie is dead (its memory is freed), and so is an image replaced by exec.
 * An owner in another pid namespace cannot be checked from here and counts as alive.
 */
bool identity_is_alive(const struct process_identity *identity);

#endif
