/* The last error of each thread. */
#ifndef GPUSIM_ERROR_H
#define GPUSIM_ERROR_H

#include "runtime_abi.h"

/* Returns `result`, and stores it for cudaGetLastError if it is a failure. */
cudaError_t remember(cudaError_t result);

#endif
