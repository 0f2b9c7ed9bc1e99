/*
 * Functions that libgpusim-device exports beside `ioctl`. The library simulates NVIDIA's kernel modules; its state is per process.
 * Only the simulated libcuda calls these functions, and `ioctl` on the library's files, while it holds its driver lock.
 */
#ifndef GPUSIM_DEVICE_LIBRARY_H
#define GPUSIM_DEVICE_LIBRARY_H

#include <stdbool.h>
#include <stdint.h>

enum device_file { DEVICE_CONTROL, DEVICE_GPU, DEVICE_UVM };

/* The simulated machine. A GPU is identified by its index in the ledger. */
struct device_machine {
    int gpus;
    bool mig; /* the GPUs are MIG instances of one GPU */
    const uint8_t *(*uuid)(int gpu);
    /* Takes memory of a GPU, false if it has too little left; gives memory back. */
    bool (*take)(int gpu, uint64_t bytes);
    void (*give)(int gpu, uint64_t bytes);
    /* Returns a client number that no process has used. */
    uint32_t (*client)(void);
    /* Name of the request layout (GPUSIM_RM). */
    const char *layout;
};

/* Overrides the simulated driver's answer to the next RM request. */
struct device_answer {
    uint32_t object, status, attr;
    uint64_t bytes; /* granted */
};

/* Loads the driver. */
void gpusim_device_load(const struct device_machine *machine);

/* Opens a file of the driver; returns -1 and sets errno if no descriptor is left. */
int gpusim_device_open(enum device_file file);

void gpusim_device_answer(const struct device_answer *answer);

/* Returns the video memory charged to this process on a GPU: the granted bytes of its live objects. */
uint64_t gpusim_device_charged_bytes(int gpu);

/* NVIDIA's device number of a GPU. It differs from the index, so that tests detect a confusion of the two. */
static inline uint32_t device_instance(const struct device_machine *machine, int gpu)
{
    return machine->mig ? 0 : (uint32_t)(machine->gpus - 1 - gpu);
}

/* The GPU's number by its PCI slot, as in GET_ID_INFO. */
static inline uint32_t device_gpu_id(int gpu)
{
    return (uint32_t)(0x10 + gpu) << 8;
}

/* Number of the first instance of a MIG GPU, also in NVML. */
#define FIRST_GPU_INSTANCE 7u

#endif
