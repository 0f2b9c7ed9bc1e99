/* cudaDeviceProp, filled from the driver's device attributes. */
#include "context.h"
#include "stand_in.h"

#include <string.h>

/* Offsets and sizes in cudaDeviceProp that both major versions share. */
enum { NAME_AT = 0, NAME_BYTES = 256, UUID_AT = 256, TOTAL_BYTES_AT = 288 };
enum { PROPERTIES_BYTES = CUDA_12_OR_13(1032, 1008) };

/* The offset of a field that this version's struct lacks. */
enum { ABSENT = -1 };

struct property {
    short at; /* bytes from the start of cudaDeviceProp, or ABSENT */
    unsigned char bytes;
    unsigned char attribute; /* CUdevice_attribute */
};

/* Offsets of a field in CUDA 12's and CUDA 13's struct, and the attribute with its value. */
#define INT(at_12, at_13, attribute) {CUDA_12_OR_13(at_12, at_13), sizeof(int), attribute}
#define SIZE(at_12, at_13, attribute) {CUDA_12_OR_13(at_12, at_13), sizeof(size_t), attribute}

static const struct property PROPERTIES[] = {
    SIZE(296, 296, 8), /* max shared memory per block */
    INT(304, 304, 12), /* max registers per block */
    INT(308, 308, 10), /* warp size */
    SIZE(312, 312, 11), /* max pitch */
    INT(320, 320, 1), /* max threads per block */
    INT(324, 324, 2), /* max block dim x */
    INT(328, 328, 3), /* max block dim y */
    INT(332, 332, 4), /* max block dim z */
    INT(336, 336, 5), /* max grid dim x */
    INT(340, 340, 6), /* max grid dim y */
    INT(344, 344, 7), /* max grid dim z */
    INT(348, ABSENT, 13), /* clock rate */
    SIZE(352, 352, 9), /* total constant memory */
    INT(360, 360, 75), /* compute capability major */
    INT(364, 364, 76), /* compute capability minor */
    SIZE(368, 368, 14), /* texture alignment */
    SIZE(376, 376, 51), /* texture pitch alignment */
    INT(384, ABSENT, 15), /* gpu overlap */
    INT(388, 384, 16), /* multiprocessor count */
    INT(392, ABSENT, 17), /* kernel exec timeout */
    INT(396, 388, 18), /* integrated */
    INT(400, 392, 19), /* can map host memory */
    INT(404, ABSENT, 20), /* compute mode */
    INT(408, 396, 21), /* maximum 1D texture width */
    SIZE(568, 552, 30), /* surface alignment */
    INT(576, 560, 31), /* concurrent kernels */
    INT(580, 564, 32), /* ecc enabled */
    INT(584, 568, 33), /* pci bus id */
    INT(588, 572, 34), /* pci device id */
    INT(592, 576, 50), /* pci domain id */
    INT(596, 580, 35), /* tcc driver */
    INT(600, 584, 40), /* async engine count */
    INT(604, 588, 41), /* unified addressing */
    INT(608, ABSENT, 36), /* memory clock rate */
    INT(612, 592, 37), /* global memory bus width */
    INT(616, 596, 38), /* l2 cache size */
    INT(620, 600, 108), /* max persisting l2 cache size */
    INT(624, 604, 39), /* max threads per multiprocessor */
    INT(628, 608, 78), /* stream priorities supported */
    INT(632, 612, 79), /* global l1 cache supported */
    INT(636, 616, 80), /* local l1 cache supported */
    SIZE(640, 624, 81), /* max shared memory per multiprocessor */
    INT(648, 632, 82), /* max registers per multiprocessor */
    INT(652, 636, 83), /* managed memory */
    INT(656, 640, 84), /* multi gpu board */
    INT(660, 644, 85), /* multi gpu board group id */
    INT(664, 648, 86), /* host native atomic supported */
    INT(672, 652, 88), /* pageable memory access */
    INT(676, 656, 89), /* concurrent managed access */
    INT(680, 660, 90), /* compute preemption supported */
    INT(684, 664, 91), /* can use host pointer for registered mem */
    INT(688, 668, 95), /* cooperative launch */
    SIZE(696, 672, 97), /* max shared memory per block optin */
    INT(712, 688, 106), /* max blocks per multiprocessor */
    INT(716, 692, 109), /* max access policy window size */
    SIZE(720, 696, 111), /* reserved shared memory per block */
    INT(728, 704, 99), /* host register supported */
    INT(744, 720, 115), /* memory pools supported */
    INT(748, 724, 116), /* gpu direct rdma supported */
    INT(760, 736, 119), /* mempool supported handle types */
    INT(768, 744, 125), /* ipc event supported */
    INT(772, 748, 120), /* cluster launch */
    INT(776, 752, 129), /* unified function pointers */
};

static void fill_property(char *properties, const struct property *property, int device)
{
    int value = 0;
    if (property->at == ABSENT || driver.cuDeviceGetAttribute(&value, property->attribute, device) != cudaSuccess)
        return;
    const size_t wide = (size_t)value;
    memcpy(properties + property->at, property->bytes == sizeof value ? (void *)&value : (void *)&wide, property->bytes);
}

static cudaError_t fill(char *properties, int device)
{
    memset(properties, 0, PROPERTIES_BYTES);
    const cudaError_t result = driver.cuDeviceGetName(properties + NAME_AT, NAME_BYTES, device);
    if (result != cudaSuccess)
        return result;
    driver.cuDeviceGetUuid(properties + UUID_AT, device);
    driver.cuDeviceTotalMem((size_t *)(void *)(properties + TOTAL_BYTES_AT), device);
    for (size_t i = 0; i < sizeof PROPERTIES / sizeof *PROPERTIES; i++)
        fill_property(properties, &PROPERTIES[i], device);
    return cudaSuccess;
}

#if CUDA_MAJOR == 12
#define GET_PROPERTIES cudaGetDeviceProperties_v2
#else
#define GET_PROPERTIES cudaGetDeviceProperties
#endif

EXPORT cudaError_t GET_PROPERTIES(void *properties, int device)
{
    return remember(start_driver() ?: fill(properties, device));
}
