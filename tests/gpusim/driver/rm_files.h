/* The files of the simulated kernel driver, its layout, and how a request goes out. Needs the driver lock. */
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

/* The UUID of a GPU; of the whole one, where it is divided. */
const uint8_t *rm_uuid(int gpu);

/* Whether video memory is to be had by VID_HEAP_CONTROL (GPUSIM_RM=heap). */
bool rm_uses_heap(void);

/* Sends a request, wrapped where GPUSIM_RM=xfer; whether the ioctl answered 0. */
bool rm_send(enum device_file file, uint32_t number, void *argument, uint32_t bytes);
bool uvm_send(uint32_t number, void *argument);

#endif
