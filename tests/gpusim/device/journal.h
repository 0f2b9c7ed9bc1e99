/*
 * Log of requests, written to the file GPUSIM_RM_LOG: one line per returned request. Columns: process id, number and size
 * (of the inner request, if wrapped), `wrapped` or `plain`, class or control command, client, parent, object (all
 * hexadecimal), requested and granted bytes, status (hexadecimal), return value of the ioctl, address, length, source client and
 * object of a duplicate.
 */
#ifndef GPUSIM_JOURNAL_H
#define GPUSIM_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

/* A request and its answer. */
struct request {
    uint32_t number, bytes;
    bool wrapped;
    uint32_t client, parent, object, class, flags, attr, status;
    uint32_t source_client, source_object;
    uint64_t asked_bytes, granted_bytes;
    uint64_t address, length;
    int answer; /* return value of the ioctl: 0 or -1 */
};

void journal_add(const struct request *request);

#endif
