/* Shared by modules and launches. */
#ifndef GPUSIM_MODULE_H
#define GPUSIM_MODULE_H

#include <stdbool.h>

#include "cuda_abi.h"

struct kernel {
    struct module *module;
    char *name;
    bool loaded; /* launched before: its code is on the device */
    int dynamic_shared_bytes; /* as set by the caller; 0: the default */
    struct kernel *next;
};

#endif
