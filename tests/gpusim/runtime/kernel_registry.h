/* Kernels that the program's code registered at start, by the address of their host-side stub. */
#ifndef GPUSIM_KERNEL_REGISTRY_H
#define GPUSIM_KERNEL_REGISTRY_H

#include "runtime_abi.h"

/*
 * The driver's handle of the kernel with the host-side stub `stub`; its module is loaded on first use, as with the real
 * runtime's lazy loading. Fails with cudaErrorInvalidDeviceFunction for an unknown stub. Needs a current context.
 */
cudaError_t find_kernel(const void *stub, void **kernel);

#endif
