/* The devices of the machine, and those visible to this process. */
#ifndef GPUSIM_DEVICE_H
#define GPUSIM_DEVICE_H

#include "cuda_abi.h"

/* Reads CUDA_VISIBLE_DEVICES; CUDA_ERROR_NO_DEVICE if it hides all. A process sees only the first of several MIG instances. */
CUresult devices_start(void);

/* Number of devices visible to this process, and their indices in the ledger. */
int device_visible_count(void);
const int *devices_visible(void);

/*
 * The ledger index of the device with this ordinal; CUDA_ERROR_NOT_INITIALIZED before cuInit,
 * CUDA_ERROR_INVALID_DEVICE for an ordinal out of range.
 */
CUresult device_of_ordinal(CUdevice ordinal, int *device);

/* The ordinal of a ledger device in this process. */
CUdevice device_ordinal(int device);

/* An attribute of the simulated model; 0 if the model does not define it. */
int device_attribute(int attribute);

#endif
