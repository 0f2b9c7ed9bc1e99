/* The files of the simulated kernel driver, its layout, and sending of requests. Needs the driver lock. */
#ifndef GPUSIM_RM_FILES_H
#define GPUSIM_RM_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "device_library.h"
#include "requests.h"

/* Loads the driver and opens its files; reads GPUSIM_RM. */
bool rm_files_open(void);

bool rm_files_are_open(void);
const struct rm_layout *rm_layout(void);

/* The UUID of a GPU; with MIG, of the whole GPU. */
const uint8_t *rm_uuid(int gpu);

/* Whether video memory is allocated by VID_HEAP_CONTROL (GPUSIM_RM=heap). */
bool rm_uses_heap(void);

/* Sends a request, wrapped with GPUSIM_RM=xfer; returns whether the ioctl returned 0. */
bool rm_send(enum device_file file, uint32_t number, void *argument, uint32_t bytes);
bool uvm_send(uint32_t number, void *argument);

#endif
