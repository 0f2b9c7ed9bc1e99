/*
 * Requests to the simulated kernel driver (device/), as libcuda makes them: one client per process, a device, a subdevice and an
 * address space for each GPU that it sees. An object is its handle, 0 is none. Needs the driver lock.
 */
#ifndef GPUSIM_RM_H
#define GPUSIM_RM_H

#include <stdbool.h>
#include <stdint.h>

/* Memory as it is asked for, and as it was granted. */
struct rm_memory {
    uint32_t class, flags, attr, attr2;
    uint64_t bytes;
};

/* What an object of a GPU may stand below. */
enum rm_parent { RM_DEVICE, RM_SUBDEVICE };

/* What cuInit does, for the GPUs that it sees. Whether the driver has answered; true at once with GPUSIM_RM=off. */
bool rm_start(const int *visible, int count);

/* Only the files, for a program that makes all requests itself. */
bool rm_open(void);

/* False with GPUSIM_RM=off: there is no kernel driver to ask. */
bool rm_is_on(void);

uint32_t rm_client(void);
uint32_t rm_parent(int gpu, enum rm_parent parent);

/* A handle that is not in use. */
uint32_t rm_new_handle(void);

/* An object under another one; 0 when it is refused. */
uint32_t rm_make(uint32_t parent, uint32_t class, void *parameters);

/* Memory of a GPU, or of the host for one, under a handle; false when it is refused. */
bool rm_take_memory(int gpu, uint32_t handle, struct rm_memory *memory);

/* Host memory at an address; 0 when it is refused. */
uint32_t rm_pin(int gpu, uint64_t address, uint64_t bytes);

/* Another process's memory. */
uint32_t rm_duplicate(int gpu, uint32_t source_client, uint32_t source_object);

/* Frees an object with all below it. The handle may come back; `rm_free_kept` keeps it for what comes next. */
void rm_free(uint32_t parent, uint32_t object);
void rm_free_kept(uint32_t parent, uint32_t object);

/* An object went with what it stood below: its handle may come back. */
void rm_forget(uint32_t object);

/* Frees video memory as it was made (GPUSIM_RM=heap has a way of its own). */
void rm_give_memory(int gpu, uint32_t object);

/* Asks which GPU it is. */
void rm_ask_uuid(int gpu);

/* Where memory is mapped, and that it is no more: a mapping of memory of its own, or one in a range that stays. */
void rm_map(uint32_t object, uint64_t address, uint64_t bytes, uint64_t offset_bytes);
void rm_unmap(uint64_t address, uint64_t bytes);
void rm_unmap_part(uint64_t address, uint64_t bytes);

#endif
