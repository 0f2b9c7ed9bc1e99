#include "driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "accounting.h"
#include "context.h"
#include "device.h"
#include "log.h"
#include "rm.h"
#include "settings.h"

enum driver_state { BEFORE_INIT, READY, FORKED, ENDED };

static enum driver_state state;
static pid_t owner;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Read by the exported trampolines (build: Prologue::Cmp); their je is taken if it equals GUARD_TAKEN. */
uint32_t gpusim_guard __attribute__((visibility("hidden")));
enum { GUARD_TAKEN = 0x67707573 };

static enum driver_state current_state(void)
{
    return __atomic_load_n(&state, __ATOMIC_ACQUIRE);
}

static CUresult state_error(enum driver_state now)
{
    switch (now) {
    case READY: return CUDA_SUCCESS;
    case ENDED: return CUDA_ERROR_DEINITIALIZED;
    default: return CUDA_ERROR_NOT_INITIALIZED;
    }
}

CUresult driver_check(void)
{
    return state_error(current_state());
}

CUresult driver_enter(void)
{
    /* Also checked before the lock: in a forked child, a thread that exists only in the parent may hold the lock. */
    CUresult result = driver_check();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    result = driver_check();
    if (result != CUDA_SUCCESS)
        pthread_mutex_unlock(&lock);
    return result;
}

CUresult driver_enter_context(struct context **current)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = context_current(current);
    if (result != CUDA_SUCCESS)
        driver_leave();
    return result;
}

void driver_leave(void)
{
    pthread_mutex_unlock(&lock);
}

int driver_version(void)
{
    return (int)settings_number("GPUSIM_DRIVER_VERSION", 13020);
}

void *driver_record(size_t bytes)
{
    void *record = calloc(1, bytes);
    if (!record) {
        log_line(LOG_ALWAYS, "no memory for a record of %zu bytes", bytes);
        abort();
    }
    return record;
}

uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    uint64_t rest = bytes % unit;
    if (rest == 0)
        return bytes;
    uint64_t missing = unit - rest;
    return bytes > UINT64_MAX - missing ? UINT64_MAX : bytes + missing;
}

static void in_forked_child(void)
{
    /* A grandchild also inherits the files. */
    if (current_state() == READY || current_state() == FORKED) {
        __atomic_store_n(&state, FORKED, __ATOMIC_RELEASE);
        accounting_disown();
    }
}

__attribute__((constructor)) static void set_guard(void)
{
    gpusim_guard = settings_is("GPUSIM_GUARD", "taken") ? GUARD_TAKEN : 0;
}

/* Waits a moment for a thread inside a call. If the lock is not released, the slot is reaped after the process has exited. */
__attribute__((destructor)) static void end_of_process(void)
{
    if (current_state() != READY || owner != getpid())
        return;
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 1;
    int waited = pthread_mutex_timedlock(&lock, &deadline);
    __atomic_store_n(&state, ENDED, __ATOMIC_RELEASE);
    if (waited == 0) {
        accounting_end();
        pthread_mutex_unlock(&lock);
    }
}

static bool start_kernel_driver(bool bare)
{
    return bare ? rm_open() : rm_start(devices_visible(), device_visible_count());
}

static CUresult start(bool bare)
{
    CUresult result = accounting_start();
    if (result == CUDA_SUCCESS)
        result = devices_start();
    if (result == CUDA_SUCCESS && !start_kernel_driver(bare))
        result = CUDA_ERROR_SYSTEM_NOT_READY;
    if (result != CUDA_SUCCESS) {
        accounting_end();
        return result;
    }
    contexts_start();
    owner = getpid();
    pthread_atfork(NULL, NULL, in_forked_child);
    __atomic_store_n(&state, READY, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

static CUresult start_once(bool bare)
{
    enum driver_state now = current_state();
    if (now != BEFORE_INIT)
        return state_error(now);
    pthread_mutex_lock(&lock);
    CUresult result = current_state() == BEFORE_INIT ? start(bare) : state_error(current_state());
    pthread_mutex_unlock(&lock);
    return result;
}

DRIVER_API(cuInit)(unsigned flags)
{
    (void)flags;
    return start_once(false);
}

CUresult driver_start_bare(void)
{
    return start_once(true);
}

DRIVER_API(cuDriverGetVersion)(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = driver_version();
    return CUDA_SUCCESS;
}
