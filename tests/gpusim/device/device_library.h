/*
 * What libgpusim-device gives beside `ioctl`: the simulated kernel driver, in the place of NVIDIA's kernel modules. Its state is
 * the process's own. The simulated libcuda calls all of it, `ioctl` on its files too, under its driver lock.
 */
#ifndef GPUSIM_DEVICE_LIBRARY_H
#define GPUSIM_DEVICE_LIBRARY_H

#include <stdbool.h>
#include <stdint.h>

enum device_file { DEVICE_CONTROL, DEVICE_GPU, DEVICE_UVM };

/* The machine that the driver is for. A GPU is its index in the ledger. */
struct device_machine {
    int gpus;
    bool mig; /* the GPUs are instances of one */
    const uint8_t *(*uuid)(int gpu);
    /* Takes memory of a GPU, false when it has not that much left; gives it back. */
    bool (*take)(int gpu, uint64_t bytes);
    void (*give)(int gpu, uint64_t bytes);
    /* A number of a client that no process has had. */
    uint32_t (*client)(void);
    /* The layout's name (GPUSIM_RM). */
    const char *layout;
};

/* What the next request of RM is to be answered with, where that is not up to the simulated driver. */
struct device_answer {
    uint32_t object, status, attr;
    uint64_t bytes; /* granted */
};

/* Loads the driver. */
void gpusim_device_load(const struct device_machine *machine);

/* Opens one of its files; -1 with errno when there is no descriptor to be had. */
int gpusim_device_open(enum device_file file);

void gpusim_device_answer(const struct device_answer *answer);

/* The granted bytes of the video memory that is charged to this process on a GPU: those of its live objects. */
uint64_t gpusim_device_charged_bytes(int gpu);

/* NVIDIA's number of a GPU among the devices: not its index, so that nobody takes one for the other. */
static inline uint32_t device_instance(const struct device_machine *machine, int gpu)
{
    return machine->mig ? 0 : (uint32_t)(machine->gpus - 1 - gpu);
}

/* Its number by its place on the bus, which GET_ID_INFO is asked by. */
static inline uint32_t device_gpu_id(int gpu)
{
    return (uint32_t)(0x10 + gpu) << 8;
}

/* The number of the first instance of a divided GPU: NVML's too. */
#define FIRST_GPU_INSTANCE 7u

#endif
