/* The tree of objects created by a process's clients. A client is an object that is its own parent. */
#ifndef GPUSIM_OBJECTS_H
#define GPUSIM_OBJECTS_H

#include <stdint.h>

#define NO_GPU (-1)

struct object {
    uint32_t client, handle, class;
    int gpu; /* GPU of the object; NO_GPU above the devices */
    uint64_t charged_bytes;
    struct object *parent, *first_child, *previous, *next;
    struct object *next_of_bucket;
};

/* Returns NULL for an unknown object. */
struct object *object_find(uint32_t client, uint32_t handle);

/* Adds an object below a parent, on the parent's GPU; returns NULL if the process is out of memory. */
struct object *object_add(uint32_t client, uint32_t handle, uint32_t class, struct object *parent);

/* Removes an object and all objects below it, and calls `gone` for each. */
void object_remove(struct object *object, void (*gone)(const struct object *object));

#endif
