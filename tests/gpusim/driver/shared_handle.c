#include "shared_handle.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x6472616853555047ull

struct shared_description shared_describe(uint64_t address, uint64_t bytes, uint64_t identity, int device)
{
    return (struct shared_description){
        .magic = MAGIC, .address = address, .bytes = bytes, .identity = identity, .tgid = getpid(), .device = device};
}

bool shared_description_is_valid(const struct shared_description *description)
{
    return description->magic == MAGIC;
}

int shared_export(const struct shared_description *description)
{
    int file = memfd_create("gpusim-handle", MFD_CLOEXEC);
    if (file < 0)
        return -1;
    if (pwrite(file, description, sizeof *description, 0) == (ssize_t)sizeof *description)
        return file;
    close(file);
    return -1;
}

bool shared_import(int file, struct shared_description *description)
{
    return pread(file, description, sizeof *description, 0) == (ssize_t)sizeof *description
        && shared_description_is_valid(description);
}
