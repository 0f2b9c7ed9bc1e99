/*
 * The journal of requests, where GPUSIM_RM_LOG names a file: one line each, as they return. Columns: process id, number and size
 * (of the inner request, where it was wrapped), `wrapped` or `plain`, class or control command, client, parent, object (all
 * hexadecimal), bytes asked for and granted, status (hexadecimal), the ioctl's answer, address, length, source client and object
 * of a duplicate.
 */
#ifndef GPUSIM_JOURNAL_H
#define GPUSIM_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

/* One request, as it was read and as it is answered. */
struct request {
    uint32_t number, bytes;
    bool wrapped;
    uint32_t client, parent, object, class, flags, attr, status;
    uint32_t source_client, source_object;
    uint64_t asked_bytes, granted_bytes;
    uint64_t address, length;
    int answer; /* of the ioctl: 0 or -1 */
};

void journal_add(const struct request *request);

#endif
