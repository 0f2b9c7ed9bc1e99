/* Checkpoint calls act on the process with the given process id, not on the caller. */
#include "accounting.h"
#include "driver.h"
#include "log.h"

static CUresult suspend(int tgid, bool suspended)
{
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        result = accounting_suspend(tgid, suspended);
        driver_leave();
    }
    log_line(LOG_CALLS, "checkpoint: process %d %s = %d", tgid, suspended ? "suspended" : "restored", result);
    return result;
}

DRIVER_API(cuCheckpointProcessLock)(int tgid, void *arguments)
{
    (void)tgid, (void)arguments;
    return driver_check();
}

DRIVER_API(cuCheckpointProcessCheckpoint)(int tgid, void *arguments)
{
    (void)arguments;
    return suspend(tgid, true);
}

DRIVER_API(cuCheckpointProcessRestore)(int tgid, void *arguments)
{
    (void)arguments;
    return suspend(tgid, false);
}

DRIVER_API(cuCheckpointProcessUnlock)(int tgid, void *arguments)
{
    (void)tgid, (void)arguments;
    return driver_check();
}
