/*
 * Requests to the simulated kernel driver (device/), as libcuda makes them: one client per process and, for each visible GPU, a
 * device, a subdevice and an address space. An object is identified by its handle, 0 is none. Needs the driver lock.
 */
#ifndef GPUSIM_RM_H
#define GPUSIM_RM_H

#include <stdbool.h>
#include <stdint.h>

/* Memory as requested, and as granted. */
struct rm_memory {
    uint32_t class, flags, attr, attr2;
    uint64_t bytes;
};

/* Possible parents of an object of a GPU. */
enum rm_parent { RM_DEVICE, RM_SUBDEVICE };

/* Makes the requests of cuInit for the visible GPUs. Returns whether all succeeded; with GPUSIM_RM=off always true. */
bool rm_start(const int *visible, int count);

/* Opens only the files, for a program that makes all requests itself. */
bool rm_open(void);

/* False with GPUSIM_RM=off: there is no kernel driver. */
bool rm_is_on(void);

uint32_t rm_client(void);
uint32_t rm_parent(int gpu, enum rm_parent parent);

/* Returns an unused handle. */
uint32_t rm_new_handle(void);

/* Creates an object below another; 0 if refused. */
uint32_t rm_make(uint32_t parent, uint32_t class, void *parameters);

/* Takes memory of a GPU, or of the host for a GPU, under a handle; false if refused. */
bool rm_take_memory(int gpu, uint32_t handle, struct rm_memory *memory);

/* Pins host memory at an address; 0 if refused. */
uint32_t rm_pin(int gpu, uint64_t address, uint64_t bytes);

/* Duplicates another process's memory. */
uint32_t rm_duplicate(int gpu, uint32_t source_client, uint32_t source_object);

/* Frees an object and all below it. The handle may be reused; `rm_free_kept` reserves it for the next object. */
void rm_free(uint32_t parent, uint32_t object);
void rm_free_kept(uint32_t parent, uint32_t object);

/* Makes the handle of an object reusable that was freed with its parent. */
void rm_forget(uint32_t object);

/* Frees video memory in the way it was taken (GPUSIM_RM=heap uses another request). */
void rm_give_memory(int gpu, uint32_t object);

/* Queries the GPU's UUID. */
void rm_ask_uuid(int gpu);

/* Maps memory at an address, and unmaps it: a whole mapping, or part of a range that is kept. */
void rm_map(uint32_t object, uint64_t address, uint64_t bytes, uint64_t offset_bytes);
void rm_unmap(uint64_t address, uint64_t bytes);
void rm_unmap_part(uint64_t address, uint64_t bytes);

#endif
