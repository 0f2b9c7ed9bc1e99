/* The memory of a cuBLAS handle, where GPUSIM_CUBLAS_MEMORY is 1. */
#ifndef GPUSIM_CUBLAS_MEMORY_H
#define GPUSIM_CUBLAS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

struct cublas_memory { unsigned long long addresses[3]; };

/* Takes it; false where the driver has not so much. */
bool cublas_memory_take(struct cublas_memory *memory);

/* Gives back what was taken. */
void cublas_memory_give(struct cublas_memory *memory);

#endif
