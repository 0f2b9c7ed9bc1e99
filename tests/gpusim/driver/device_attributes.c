#include <stddef.h>

#include "device.h"

/* Values of cuDeviceGetAttribute for the simulated model: an H100 SXM. */
static const struct {
    int attribute;
    int value;
} values[] = {
    {1, 1024},        /* threads per block */
    {2, 1024},        /* block x */
    {3, 1024},        /* block y */
    {4, 64},          /* block z */
    {5, 2147483647},  /* grid x */
    {6, 65535},       /* grid y */
    {7, 65535},       /* grid z */
    {8, 49152},       /* shared memory per block */
    {9, 65536},       /* constant memory */
    {10, 32},         /* warp size */
    {11, 2147483647}, /* pitch */
    {12, 65536},      /* registers per block */
    {13, 1980000},    /* clock, kHz */
    {14, 512},        /* texture alignment */
    {15, 1},          /* copies overlap kernels */
    {16, 132},        /* multiprocessors */
    {19, 1},          /* can map host memory */
    {21, 131072},     /* 1D texture width */
    {30, 512},        /* surface alignment */
    {31, 1},          /* concurrent kernels */
    {32, 1},          /* ECC */
    {36, 2619000},    /* memory clock, kHz */
    {37, 5120},       /* memory bus, bits */
    {38, 52428800},   /* L2, bytes */
    {39, 2048},       /* threads per multiprocessor */
    {40, 3},          /* copy engines */
    {41, 1},          /* unified addressing */
    {51, 32},         /* texture pitch alignment */
    {75, 9},          /* compute capability, major */
    {76, 0},          /* compute capability, minor */
    {78, 1},          /* stream priorities */
    {79, 1},          /* global L1 */
    {80, 1},          /* local L1 */
    {81, 233472},     /* shared memory per multiprocessor */
    {82, 65536},      /* registers per multiprocessor */
    {83, 1},          /* managed memory */
    {87, 2},          /* single to double precision ratio */
    {89, 1},          /* concurrent managed access */
    {90, 1},          /* compute preemption */
    {91, 1},          /* host pointers of registered memory */
    {92, 1},          /* stream memory operations, version 1 */
    {93, 1},          /* 64-bit stream memory operations, version 1 */
    {94, 1},          /* wait-value NOR, version 1 */
    {95, 1},          /* cooperative launch */
    {97, 232448},     /* shared memory per block, opt-in */
    {98, 1},          /* flush remote writes */
    {99, 1},          /* host register */
    {102, 1},         /* virtual memory management */
    {103, 1},         /* POSIX file descriptor handles */
    {106, 32},        /* blocks per multiprocessor */
    {108, 32768000},  /* persisting L2 */
    {109, 134213632}, /* access policy window */
    {111, 1024},      /* reserved shared memory per block */
    {115, 1},         /* memory pools */
    {119, 1},         /* pool handle types: POSIX file descriptor */
    {120, 1},         /* cluster launch */
};

int device_attribute(int attribute)
{
    for (size_t index = 0; index < sizeof values / sizeof *values; index++)
        if (values[index].attribute == attribute)
            return values[index].value;
    return 0;
}
