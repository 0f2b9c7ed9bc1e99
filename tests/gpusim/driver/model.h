/* What the simulated devices are called, and where they sit: GPUs of their own, or MIG instances of one GPU. */
#ifndef GPUSIM_MODEL_H
#define GPUSIM_MODEL_H

#include "ledger.h"

/* Enough for a UUID with its prefix, such as `GPU-` and 36 letters. */
#define UUID_TEXT 41

#define GPU_NAME "Simulated NVIDIA H100 80GB HBM3"
/* PCI bus numbers start here: device 0 is 0000:10:00.0. */
#define FIRST_PCI_BUS 0x10

/* The name of a device: a MIG instance's ends in its profile, such as `MIG 1g.10gb`. */
void model_name(const struct ledger *ledger, int device, char *text, size_t length);

/* The PCI bus of a device: MIG instances have their GPU's. */
int model_pci_bus(const struct ledger *ledger, int device);

/* The UUID as NVML spells it: `GPU-…`, or `MIG-…` of an instance. */
void model_uuid(const struct ledger *ledger, int device, char text[UUID_TEXT]);

/* The UUID of the GPU that the instances are parts of. */
void model_parent_uuid(const struct ledger *ledger, char text[UUID_TEXT]);

#endif
