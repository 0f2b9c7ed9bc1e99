/* Which process image owns a slot, and whether it still runs. */
#ifndef GPUSIM_LIVENESS_H
#define GPUSIM_LIVENESS_H

#include <stdbool.h>
#include <stdint.h>

struct process_identity {
    int32_t tgid; /* in the owner's pid namespace */
    uint32_t reserved;
    uint64_t start_time_ticks; /* field 22 of /proc/<tgid>/stat: guards against reuse of the number */
    uint64_t stack_start;      /* field 28: changes at exec; 0 where the kernel does not report */
    uint64_t pid_namespace;    /* inode of /proc/self/ns/pid */
};

struct process_identity identity_of_this_process(void);

/*
 * Whether the image that took this identity still runs. A zombie is dead (its memory is gone), an image replaced by exec too.
 * An owner in another pid namespace cannot be judged from here and counts as alive.
 */
bool identity_is_alive(const struct process_identity *identity);

#endif
