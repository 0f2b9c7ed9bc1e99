/*
 * One clock per process: the time at which its last kernel ends. GPUSIM_KERNEL_NS is the duration of a kernel, GPUSIM_BLOCK_NS that of each of its blocks
 * in addition, so that only a program with large tensors waits for its device. By default, kernels take no time.
 */
#include "work.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "accounting.h"
#include "settings.h"

/* Maximum number of kernels in a device's queue; the next launch waits for the first of them. */
enum { QUEUED_KERNELS = 1024 };

static uint64_t kernel_ns, block_ns;
static pthread_once_t settings_read = PTHREAD_ONCE_INIT;
static _Atomic uint64_t last_end;

static void read_settings(void)
{
    kernel_ns = settings_number("GPUSIM_KERNEL_NS", 0);
    block_ns = settings_number("GPUSIM_BLOCK_NS", 0);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t work_end(void)
{
    return atomic_load(&last_end);
}

bool work_is_done(uint64_t end)
{
    return end == 0 || now_ns() >= end;
}

void work_wait(uint64_t end)
{
    struct timespec until = {.tv_sec = (time_t)(end / 1000000000u), .tv_nsec = (long)(end % 1000000000u)};
    while (!work_is_done(end) && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

void work_launch(uint64_t blocks)
{
    pthread_once(&settings_read, read_settings);
    uint64_t takes = kernel_ns + block_ns * blocks;
    if (takes == 0)
        return;
    uint64_t queue = takes * QUEUED_KERNELS, end = work_end(), begun, now;
    if (end > queue)
        work_wait(end - queue);
    do {
        now = now_ns();
        begun = end > now ? end : now;
    } while (!atomic_compare_exchange_weak(&last_end, &end, begun + takes));
    accounting_kernel(begun + takes, takes);
}
