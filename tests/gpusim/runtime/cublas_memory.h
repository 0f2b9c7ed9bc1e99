/* The memory of a cuBLAS handle, with GPUSIM_CUBLAS_MEMORY=1. */
#ifndef GPUSIM_CUBLAS_MEMORY_H
#define GPUSIM_CUBLAS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

struct cublas_memory { unsigned long long addresses[3]; };

/* Takes the memory; false if the driver has too little left. */
bool cublas_memory_take(struct cublas_memory *memory);

/* Frees the memory. */
void cublas_memory_give(struct cublas_memory *memory);

#endif
