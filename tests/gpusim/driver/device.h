/* The devices of the machine and the ones that this process sees. */
#ifndef GPUSIM_DEVICE_H
#define GPUSIM_DEVICE_H

#include "cuda_abi.h"

/* Reads CUDA_VISIBLE_DEVICES; CUDA_ERROR_NO_DEVICE when it leaves none. Of MIG instances a process sees only the first. */
CUresult devices_start(void);

/* How many devices this process sees, and which, by their indices in the ledger. */
int device_visible_count(void);
const int *devices_visible(void);

/*
 * The index in the ledger of the device with this ordinal; CUDA_ERROR_NOT_INITIALIZED before cuInit,
 * CUDA_ERROR_INVALID_DEVICE for an ordinal out of range.
 */
CUresult device_of_ordinal(CUdevice ordinal, int *device);

/* The ordinal under which this process sees a device of the ledger. */
CUdevice device_ordinal(int device);

/* A constant of the simulated model, 0 for an attribute it does not have. */
int device_attribute(int attribute);

#endif
