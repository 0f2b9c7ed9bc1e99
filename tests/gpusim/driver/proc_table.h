/* The table of cuGetProcAddress; the build generates it, with the exported functions, from driver-exports.tsv. */
#ifndef GPUSIM_PROC_TABLE_H
#define GPUSIM_PROC_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda_abi.h"

struct proc_address {
    const char *base;
    const char *symbol;
    void *address; /* of the exported symbol, where a uprobe is attached */
    int since;
    bool per_thread;
};

extern const struct proc_address proc_addresses[];
extern const size_t proc_address_count;

/* Names of all exported functions, terminated by a null pointer. */
extern const char *const gpusim_symbols[];

#endif
