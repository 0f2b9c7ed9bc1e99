/*
 * NCCL: communicators exist and collectives succeed. Ranks exchange no data: every rank is assumed to hold the same
 * bytes, so a collective copies within one device what it would have received.
 */
#include "stand_in.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int status; /* ncclResult_t */
enum { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, SYSTEM_ERROR = 2 };

typedef struct { char bytes[128]; } unique_id; /* passed by value */

struct communicator {
    int ranks;
    int rank;
};

typedef int (*copy_function)(uint64_t destination, uint64_t source, size_t bytes, void *stream);

long stand_in_missing(const char *symbol)
{
    log_line(LOG_NO_OPERATION, "%s does nothing", symbol);
    return SUCCESS;
}

static status copy(void *destination, const void *source, size_t bytes, void *stream)
{
    static _Atomic(copy_function) driver_copy;
    if (destination == source)
        return SUCCESS;
    if (!driver_copy) {
        void *const driver = dlopen("libcuda.so.1", RTLD_NOW);
        driver_copy = driver ? (copy_function)dlsym(driver, "cuMemcpyAsync") : NULL;
        if (!driver_copy)
            return UNHANDLED_CUDA_ERROR;
    }
    return driver_copy((uint64_t)destination, (uint64_t)source, bytes, stream) ? UNHANDLED_CUDA_ERROR : SUCCESS;
}

static size_t element_bytes(int type)
{
    /* ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, two kinds of float8 */
    static const unsigned char BYTES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return BYTES[type];
}

static status create(struct communicator **communicator, int ranks, int rank)
{
    *communicator = malloc(sizeof **communicator);
    if (!*communicator)
        return SYSTEM_ERROR;
    **communicator = (struct communicator){.ranks = ranks, .rank = rank};
    return SUCCESS;
}

EXPORT status ncclGetVersion(int *version)
{
    *version = (int)settings_number("GPUSIM_NCCL_VERSION", NCCL_VERSION);
    return SUCCESS;
}

EXPORT status ncclGetUniqueId(unique_id *id)
{
    const int tgid = getpid();
    memset(id, 0, sizeof *id);
    memcpy(id, &tgid, sizeof tgid);
    return SUCCESS;
}

EXPORT status ncclCommInitRank(struct communicator **communicator, int ranks, unique_id id, int rank)
{
    (void)id;
    return create(communicator, ranks, rank);
}

EXPORT status ncclCommInitRankConfig(struct communicator **communicator, int ranks, unique_id id, int rank, void *config)
{
    (void)id;
    (void)config;
    return create(communicator, ranks, rank);
}

EXPORT status ncclCommInitRankScalable(struct communicator **communicator, int ranks, int rank, int id_count,
                                       unique_id *ids, void *config)
{
    (void)id_count;
    (void)ids;
    (void)config;
    return create(communicator, ranks, rank);
}

EXPORT status ncclCommInitAll(struct communicator **communicators, int ranks, const int *devices)
{
    (void)devices;
    status result = SUCCESS;
    for (int rank = 0; rank < ranks && result == SUCCESS; rank++)
        result = create(&communicators[rank], ranks, rank);
    return result;
}

EXPORT status ncclCommSplit(struct communicator *communicator, int color, int key, struct communicator **split,
                            void *config)
{
    (void)color;
    (void)key;
    (void)config;
    return create(split, communicator->ranks, communicator->rank);
}

EXPORT status ncclCommDestroy(struct communicator *communicator)
{
    free(communicator);
    return SUCCESS;
}

EXPORT status ncclCommAbort(struct communicator *communicator)
{
    return ncclCommDestroy(communicator);
}

EXPORT status ncclCommGetAsyncError(struct communicator *communicator, status *error)
{
    (void)communicator;
    *error = SUCCESS;
    return SUCCESS;
}

EXPORT status ncclCommCount(struct communicator *communicator, int *ranks)
{
    *ranks = communicator->ranks;
    return SUCCESS;
}

EXPORT status ncclCommUserRank(struct communicator *communicator, int *rank)
{
    *rank = communicator->rank;
    return SUCCESS;
}

EXPORT const char *ncclGetErrorString(status result)
{
    return result == SUCCESS ? "no error" : "simulated NCCL failed";
}

EXPORT const char *ncclGetLastError(struct communicator *communicator)
{
    (void)communicator;
    return "";
}

EXPORT status ncclAllGather(const void *source, void *destination, size_t count, int type,
                            struct communicator *communicator, void *stream)
{
    const size_t bytes = count * element_bytes(type);
    status result = SUCCESS;
    for (int rank = 0; rank < communicator->ranks && result == SUCCESS; rank++)
        result = copy((char *)destination + (size_t)rank * bytes, source, bytes, stream);
    return result;
}

EXPORT status ncclAllReduce(const void *source, void *destination, size_t count, int type, int operation,
                            struct communicator *communicator, void *stream)
{
    (void)operation;
    (void)communicator;
    return copy(destination, source, count * element_bytes(type), stream);
}

EXPORT status ncclReduceScatter(const void *source, void *destination, size_t count, int type, int operation,
                                struct communicator *communicator, void *stream)
{
    (void)operation;
    const size_t bytes = count * element_bytes(type);
    return copy(destination, (const char *)source + (size_t)communicator->rank * bytes, bytes, stream);
}

/*
 * An all-gather with parts of different sizes is a group of broadcasts, one from each rank. This rank's part also replaces the parts of
 * other ranks with the same length.
 */
enum { MOST_BROADCASTS = 64 };
static _Thread_local int open_groups;
static _Thread_local int waiting;
static _Thread_local const void *given;
static _Thread_local size_t given_bytes;
static _Thread_local struct { void *destination; size_t bytes; void *stream; } wanted[MOST_BROADCASTS];

EXPORT status ncclBroadcast(const void *source, void *destination, size_t count, int type, int root,
                            struct communicator *communicator, void *stream)
{
    const size_t bytes = count * element_bytes(type);
    if (communicator->rank == root) {
        given = destination;
        given_bytes = bytes;
        return copy(destination, source, bytes, stream);
    }
    if (open_groups && waiting < MOST_BROADCASTS) {
        wanted[waiting].destination = destination;
        wanted[waiting].bytes = bytes;
        wanted[waiting++].stream = stream;
    }
    return SUCCESS;
}

EXPORT status ncclGroupStart(void)
{
    open_groups++;
    return SUCCESS;
}

EXPORT status ncclGroupEnd(void)
{
    if (--open_groups > 0)
        return SUCCESS;
    status result = SUCCESS;
    for (int i = 0; i < waiting && given && result == SUCCESS; i++)
        if (wanted[i].bytes == given_bytes)
            result = copy(wanted[i].destination, given, given_bytes, wanted[i].stream);
    waiting = 0;
    given = NULL;
    return result;
}
