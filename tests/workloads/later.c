/*
 * A program that loads the driver library on demand and allocates: `later` waits for a line first, `later at-once` does not, and
 * `later map DIRECTORY` maps the first page of each DIRECTORY/NUMBER/libcuda.so.1 as code instead.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int (*initialise)(unsigned flags);
typedef int (*get_device)(int *device, int ordinal);
typedef int (*get_uuid)(char uuid[16], int device);
typedef int (*retain)(void **context, int device);
typedef int (*make_current)(void *context);
typedef int (*allocate)(unsigned long long *address, size_t bytes);

enum { ALLOCATED_MIB = 66, PAGE_BYTES = 4096 };

static int allocate_at_once(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    char uuid[16];
    unsigned long long address;
    int device;
    if (!library) {
        printf("%s\n", dlerror());
        return 1;
    }
    if (((initialise)dlsym(library, "cuInit"))(0) != 0
        || ((get_device)dlsym(library, "cuDeviceGet"))(&device, 0) != 0
        || ((get_uuid)dlsym(library, "cuDeviceGetUuid_v2"))(uuid, device) != 0
        || ((retain)dlsym(library, "cuDevicePrimaryCtxRetain"))(&context, device) != 0
        || ((make_current)dlsym(library, "cuCtxSetCurrent"))(context) != 0
        || ((allocate)dlsym(library, "cuMemAlloc_v2"))(&address, (size_t)ALLOCATED_MIB << 20) != 0) {
        printf("the driver refuses\n");
        return 1;
    }
    return 0;
}

static int map_all(const char *directory)
{
    for (int number = 0;; number++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d/libcuda.so.1", directory, number);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0)
            return number == 0;
        if (mmap(NULL, PAGE_BYTES, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED)
            return 1;
        close(file);
    }
}

static void wait_for_a_line(const char *now)
{
    char line[64];
    printf("%s\n", now);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        _exit(0);
}

int main(int count, char **words)
{
    if (count > 1 && strcmp(words[1], "at-once") == 0)
        return allocate_at_once();
    if (count > 2 && strcmp(words[1], "map") == 0) {
        if (map_all(words[2]) != 0)
            return 1;
        wait_for_a_line("mapped");
        return 0;
    }
    wait_for_a_line("ready");
    if (allocate_at_once() != 0)
        return 1;
    wait_for_a_line("allocated");
    return 0;
}
