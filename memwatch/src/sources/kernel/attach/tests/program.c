// Runs what its input asks for, a line each, with a kernel driver of its own: its ioctl comes before the C library's.
#include "library.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static unsigned long granted;
static unsigned status;
static int answer, ends;

int ioctl(int file, unsigned long request, ...) {
    va_list arguments;
    va_start(arguments, request);
    struct allocation *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (ends)
        pthread_exit(NULL);
    if (request == ALLOC && answer == 0) {
        argument->status = status;
        argument->object = 0xcaf00000;
        if (status == 0)
            argument->params[8] = granted;
    }
    return answer;
}

static void *end(void *unused) {
    unsigned long address;
    cuMemAlloc_v2(&address, 1);
    return unused;
}

static void run(const char *line) {
    static unsigned long words[2048];
    unsigned long asked, nr, size, address;
    if (sscanf(line, "alloc %lu %lu %u %d", &asked, &granted, &status, &answer) == 4) {
        cuMemAlloc_v2(&address, asked);
    } else if (sscanf(line, "request %lx %lu", &nr, &size) == 2) {
        ask(REQUEST(nr, size), words);
    } else if (strncmp(line, "wrapped", 7) == 0) {
        unsigned freed[4] = {0xc1d00001, 0x5c000001, 0x5c000002, 0};
        unsigned long wrapping[2] = {0x29 | 16ul << 32, (unsigned long)freed};
        ask(REQUEST(0xd3, 16), wrapping);
    } else if (strncmp(line, "map", 3) == 0) {
        unsigned client_and_memory[2] = {0xc1d00001, 0x5c000002};
        words[0] = 0x7f0000000000;
        memcpy((char *)words + 9252, client_and_memory, 8);
        ask(33, words);
    } else if (strncmp(line, "end", 3) == 0) {
        pthread_t thread;
        ends = 1;
        pthread_create(&thread, NULL, end, NULL);
        pthread_join(thread, NULL);
        ends = 0;
    }
}

int main(void) {
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        run(line);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
