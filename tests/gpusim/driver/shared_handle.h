/* Data shared between processes: descriptions of memory, never the memory. Everything imported is an alias of 0 bytes. */
#ifndef GPUSIM_SHARED_HANDLE_H
#define GPUSIM_SHARED_HANDLE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* Fits the 64 bytes of CUipcMemHandle and CUmemPoolPtrExportData. */
struct shared_description {
    uint64_t magic;
    uint64_t address;
    uint64_t bytes;
    uint64_t identity;
    int32_t tgid;
    int32_t device; /* index in the ledger */
    uint32_t client, object; /* of the kernel driver; 0: none */
    uint8_t reserved[16];
};
_Static_assert(sizeof(struct shared_description) == 64, "shared_description");

struct shared_description shared_describe(uint64_t address, uint64_t bytes, uint64_t identity, int device);
bool shared_description_is_valid(const struct shared_description *description);

/* Returns a file descriptor that passes a description to another process; -1 if the kernel provides none. */
int shared_export(const struct shared_description *description);
bool shared_import(int file, struct shared_description *description);

#endif
