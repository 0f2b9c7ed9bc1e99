/* Names and PCI addresses of the simulated devices: whole GPUs, or MIG instances of one GPU. */
#ifndef GPUSIM_MODEL_H
#define GPUSIM_MODEL_H

#include "ledger.h"

/* Size of a UUID's text with its prefix: `GPU-` and 36 characters. */
#define UUID_TEXT 41

#define GPU_NAME "Simulated NVIDIA H100 80GB HBM3"
/* PCI bus numbers start here: device 0 is 0000:10:00.0. */
#define FIRST_PCI_BUS 0x10

/* The name of a device: for a MIG instance it ends in the profile, such as `MIG 1g.10gb`. */
void model_name(const struct ledger *ledger, int device, char *text, size_t length);

/* The PCI bus of a device: MIG instances have the bus of their GPU. */
int model_pci_bus(const struct ledger *ledger, int device);

/* The UUID in NVML's form: `GPU-…`, or `MIG-…` for an instance. */
void model_uuid(const struct ledger *ledger, int device, char text[UUID_TEXT]);

/* The UUID of the GPU that contains the instances. */
void model_parent_uuid(const struct ledger *ledger, char text[UUID_TEXT]);

#endif
