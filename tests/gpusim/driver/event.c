#include <stdlib.h>
#include <time.h>

#include "driver.h"
#include "pool.h"
#include "work.h"

struct event {
    unsigned flags;
    double recorded_milliseconds;
    uint64_t reached_ns; /* end of the work launched before the event was recorded */
};

static double now_milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

DRIVER_API(cuEventCreate)(CUevent *event, unsigned flags)
{
    *event = driver_record(sizeof **event);
    (*event)->flags = flags;
    return driver_check();
}

DRIVER_API(cuEventRecord)(CUevent event, CUstream stream)
{
    (void)stream;
    event->reached_ns = work_end();
    event->recorded_milliseconds =
        work_is_done(event->reached_ns) ? now_milliseconds() : (double)event->reached_ns / 1e6;
    return driver_check();
}

DRIVER_API(cuEventRecordWithFlags)(CUevent event, CUstream stream, unsigned flags)
{
    (void)flags;
    return sim_cuEventRecord(event, stream);
}

DRIVER_API(cuEventQuery)(CUevent event)
{
    CUresult result = driver_check();
    return result == CUDA_SUCCESS && !work_is_done(event->reached_ns) ? CUDA_ERROR_NOT_READY : result;
}

DRIVER_API(cuEventSynchronize)(CUevent event)
{
    work_wait(event->reached_ns);
    CUresult result = driver_enter();
    if (result == CUDA_SUCCESS) {
        pools_synchronise();
        driver_leave();
    }
    return result;
}

DRIVER_API(cuEventDestroy_v2)(CUevent event)
{
    free(event);
    return driver_check();
}

DRIVER_API(cuEventElapsedTime_v2)(float *milliseconds, CUevent start, CUevent end)
{
    *milliseconds = (float)(end->recorded_milliseconds - start->recorded_milliseconds);
    return driver_check();
}
