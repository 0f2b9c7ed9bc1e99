/* The part of the time in which kernels ran. Without GPUSIM_KERNEL_NS and GPUSIM_BLOCK_NS kernels take no time. */
#include <pthread.h>
#include <time.h>

#include "nvml.h"

/* Shortest sample period; an earlier question has the last answer again. */
#define SAMPLE_NS 200000000u

struct sample {
    uint64_t time_ns, run_ns; /* CLOCK_MONOTONIC; duration of all kernels that had run by then */
    unsigned percent;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sample samples[LEDGER_DEVICES];

static uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Duration of the kernels on a device that had run by `now`. A process with contexts on several devices counts on each. */
static uint64_t run_ns(struct ledger *ledger, int device, uint64_t now)
{
    uint64_t sum = 0;
    ledger_lock(ledger);
    for (uint32_t slot = 0; slot < ledger->slot_bound; slot++) {
        const struct ledger_process *process = &ledger->processes[slot];
        if (process->identity.tgid == 0 || process->devices[device].contexts == 0)
            continue;
        uint64_t end = __atomic_load_n(&process->kernel_end_ns, __ATOMIC_RELAXED);
        uint64_t all = __atomic_load_n(&process->kernel_ns, __ATOMIC_RELAXED);
        uint64_t queued = end > now ? end - now : 0;
        sum += all > queued ? all - queued : 0;
    }
    ledger_unlock(ledger);
    return sum;
}

unsigned nvml_busy_percent(nvmlDevice device)
{
    int index = device->index == NVML_PARENT ? 0 : device->index;
    struct sample *last = &samples[index];
    pthread_mutex_lock(&lock);
    uint64_t now = monotonic_ns(), since = now - last->time_ns;
    if (since >= SAMPLE_NS) {
        uint64_t run = run_ns(nvml_ledger(), index, now);
        uint64_t more = last->time_ns != 0 && run > last->run_ns ? run - last->run_ns : 0;
        uint64_t percent = more * 100 / since;
        *last = (struct sample){now, run, percent > 100 ? 100 : (unsigned)percent};
    }
    unsigned percent = last->percent;
    pthread_mutex_unlock(&lock);
    return percent;
}
