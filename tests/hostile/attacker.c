/* A user's program that tries to harm memwatch, from within a process that uses the driver library of its LD_LIBRARY_PATH.

   calls NAME COUNT           calls one function, or each (`all`), COUNT times
   inside THREADS             threads that never return from a call
   herd COUNT                 children that make one call and keep running
   forks                      children that make one call and exit, in an endless loop
   failures COUNT             children of which allocations fail: COUNT that keep running, then others in an endless loop, with a long command line
   churn THREADS              allocates and frees in an endless loop
   mappings COUNT FOLDER NAME maps a file with this name and a path of maximum length, page by page

   It prints "ready" when this is done or running, and runs until it is killed. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Breaks a line of metrics, JSON or a terminal unless it is escaped. */
#define NAME "\"}\n\x1b[2J{a=\""

/* A function and its arguments: g an out-pointer, b bytes, p properties (of device memory), d an array descriptor, a a new address. */
static const struct { const char *name, *arguments; } FUNCTIONS[] = {
    {"cuMemAlloc_v2", "gb"}, {"cuMemAllocPitch_v2", "ggbb"}, {"cuMemAllocManaged", "gb1"}, {"cuMemAllocHost_v2", "gb"},
    {"cuMemHostAlloc", "gb0"}, {"cuMemHostRegister_v2", "ab0"}, {"cuMemAllocAsync", "gb0"}, {"cuMemAllocAsync_ptsz", "gb0"},
    {"cuMemAllocFromPoolAsync", "gb00"}, {"cuMemAllocFromPoolAsync_ptsz", "gb00"}, {"cuMemCreate", "gbp0"}, {"cuMemMap", "ab0a0"},
    {"cuMemImportFromShareableHandle", "g01"}, {"cuIpcOpenMemHandle_v2", "g0"}, {"cuArrayCreate_v2", "gd"}, {"cuArray3DCreate_v2", "gd"},
    {"cuMipmappedArrayCreate", "gd4"}, {"cuDevicePrimaryCtxRetain", "g0"}, {"cuCtxCreate_v2", "g00"}, {"cuCtxCreate_v3", "g0000"},
    {"cuMemPoolCreate", "gp"}, {"cuMemPoolImportPointer", "g0p"}, {"cuMemAddressReserve", "gb000"}, {"cuMulticastCreate", "gp"},
    {"cuImportExternalMemory", "gp"}, {"cuExternalMemoryGetMappedBuffer", "g0p"}, {"cuGraphAddMemAllocNode", "ga00p"},
    {"cuGraphInstantiate", "ga0"}, {"cuGraphInstantiateWithFlags", "ga0"}, {"cuGreenCtxCreate", "gp00"}, {"cuStreamCreate", "g0"},
    {"cuStreamCreateWithPriority", "g00"}, {"cuModuleLoad", "gp"}, {"cuModuleLoadData", "gp"}, {"cuModuleLoadFatBinary", "gp"},
    {"cuLibraryLoadData", "gp00"}, {"cuLibraryLoadFromFile", "gp00"},
};

typedef int (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

static void *driver;

static function symbol(const char *name) {
    void *found = dlsym(driver, name);
    if (!found) { fprintf(stderr, "the driver has no %s\n", name); exit(2); }
    return (function)found;
}

static void use_driver(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { fprintf(stderr, "%s\n", dlerror()); exit(2); }
}

static void ready(void) { puts("ready"); fflush(stdout); }

static void stay(void) { ready(); for (;;) pause(); }

static void call_often(const char *name, const char *letters, long count) {
    static uint64_t address = 0x100000000000ull;
    function call = symbol(name);
    uint64_t given[2], properties[16] = {1, 1}, description[5] = {4, 4, 1, 0x20, 0};
    while (count--) {
        uint64_t arguments[6] = {0};
        for (int at = 0, gives = 0; letters[at]; at++)
            switch (letters[at]) {
            case 'g': arguments[at] = (uint64_t)(uintptr_t)&given[gives++]; break;
            case 'b': arguments[at] = 4096; break;
            case 'p': arguments[at] = (uint64_t)(uintptr_t)properties; break;
            case 'd': arguments[at] = (uint64_t)(uintptr_t)description; break;
            case 'a': arguments[at] = address += 4096; break;
            default: arguments[at] = letters[at] - '0';
            }
        call(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
    }
}

static void calls(const char *name, long count) {
    for (size_t at = 0; at < sizeof FUNCTIONS / sizeof *FUNCTIONS; at++)
        if (!strcmp(name, "all") || !strcmp(name, FUNCTIONS[at].name)) call_often(FUNCTIONS[at].name, FUNCTIONS[at].arguments, count);
    stay();
}

static void *stay_inside(void *unused) { symbol("cuMemFreeAsync")(1, 0, 0, 0, 0, 0); return unused; }

static void *allocate_and_free(void *unused) {
    function allocate = symbol("cuMemAlloc_v2"), release = symbol("cuMemFree_v2");
    for (uint64_t given;;) {
        allocate((uint64_t)(uintptr_t)&given, 4096, 0, 0, 0, 0);
        release(given, 0, 0, 0, 0, 0);
    }
    return unused;
}

static void threads(void *(*work)(void *), long count) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 32 << 10);
    for (pthread_t thread; count && !pthread_create(&thread, &small, work, 0);) count--;
    if (count) fprintf(stderr, "%ld threads are not to be had\n", count);
    sleep(1);
    stay();
}

static int child(int stays) {
    int child = fork();
    if (child) return child;
    uint64_t given;
    prctl(PR_SET_NAME, NAME);
    symbol("cuInit")(0, 0, 0, 0, 0, 0);
    symbol("cuMemAlloc_v2")((uint64_t)(uintptr_t)&given, 1 << 20, 0, 0, 0, 0);
    while (stays) pause();
    _exit(0);
}

static void herd(long count) {
    while (count && child(1) > 0) count--;
    if (count) fprintf(stderr, "%ld processes are not to be had\n", count);
    stay();
}

static void forks(void) {
    ready();
    for (long running = 0;;) {
        running += child(0) > 0;
        while (waitpid(-1, 0, running > 64 ? 0 : WNOHANG) > 0) running--;
    }
}

/* More than the driver library has. */
#define TOO_MUCH (1ull << 41)
#define LONG_WORD (64 << 10)

static void fail(void) {
    uint64_t given;
    prctl(PR_SET_NAME, NAME);
    symbol("cuInit")(0, 0, 0, 0, 0, 0);
    symbol("cuMemAlloc_v2")((uint64_t)(uintptr_t)&given, 1 << 20, 0, 0, 0, 0);
    symbol("cuMemAlloc_v2")((uint64_t)(uintptr_t)&given, TOO_MUCH, 0, 0, 0, 0);
}

/* Fails once a second, as long as it lives. */
static void fail_often(void) { for (;;) { fail(); sleep(1); } }

static void failures(long count) {
    static char word[LONG_WORD + 1];
    for (size_t at = 0; at < LONG_WORD; at++) word[at] = NAME[at % (sizeof NAME - 1)];
    char *words[] = {word, "fail", word, 0};
    while (count) {
        int child = fork();
        if (!child) fail_often();
        if (child < 0) break;
        count--;
    }
    if (count) fprintf(stderr, "%ld processes are not to be had\n", count);
    ready();
    for (long running = 0;;) {
        int child = fork();
        if (!child) { execv("/proc/self/exe", words); _exit(2); }
        running += child > 0;
        while (waitpid(-1, 0, running > 8 ? 0 : WNOHANG) > 0) running--;
    }
}

static void mappings(long count, const char *folder, const char *file) {
    char name[251] = {0};
    memset(name, 'n', 250);
    if (chdir(folder)) { perror(folder); exit(2); }
    for (int depth = 0; depth < 14; depth++)
        if ((mkdir(name, 0755) && errno != EEXIST) || chdir(name)) { perror("mkdir"); exit(2); }
    int opened = open(file, O_RDWR | O_CREAT, 0644);
    if (opened < 0 || ftruncate(opened, 1 << 20)) { perror(file); exit(2); }
    /* Alternates the access rights: the kernel would merge adjacent mappings with equal rights. */
    for (long at = 0; at < count; at++)
        if (mmap(0, 4096, at & 1 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE, opened, 0) == MAP_FAILED) break;
    call_often("cuInit", "0", 1);
    call_often("cuMemAlloc_v2", "gb", 1);
    stay();
}

int main(int words, char **word) {
    const char *what = words > 1 ? word[1] : "";
    use_driver();
    if (!strcmp(what, "fail")) { fail(); return 0; }
    /* Calls before the probes are in place would not be traced. */
    if (write(1, "mapped\n", 7) != 7 || read(0, (char[1]){0}, 1) != 1) return 2;
    if (!strcmp(what, "calls") && words == 4) calls(word[2], atol(word[3]));
    if (!strcmp(what, "inside") && words == 3) threads(stay_inside, atol(word[2]));
    if (!strcmp(what, "churn") && words == 3) threads(allocate_and_free, atol(word[2]));
    if (!strcmp(what, "herd") && words == 3) herd(atol(word[2]));
    if (!strcmp(what, "forks") && words == 2) forks();
    if (!strcmp(what, "failures") && words == 3) failures(atol(word[2]));
    if (!strcmp(what, "mappings") && words == 5) mappings(atol(word[2]), word[3], word[4]);
    fprintf(stderr, "%s is no attack\n", what);
    return 2;
}
