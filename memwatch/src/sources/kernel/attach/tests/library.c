// A driver library with one function of memwatch's table, and a stub of its own for ioctl. Layouts are those of nvos.h, 535 and later.
#include "library.h"

int ioctl(int file, unsigned long request, ...);

int ask(unsigned long request, void *argument) {
    return ioctl(-1, request, argument);
}

int cuMemAlloc_v2(unsigned long *address, unsigned long bytes) {
    unsigned long params[16] = {0};
    params[8] = bytes;
    struct allocation argument = {.client = 0xc1d00001, .parent = 0x5c000001, .kind = 0x40, .params = params};
    *address = 0x7f0000000000;
    return ask(ALLOC, &argument) || argument.status ? 2 : 0;
}
