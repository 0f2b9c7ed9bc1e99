/* The tree of objects that a process's clients have made. A client is an object of its own, its own parent. */
#ifndef GPUSIM_OBJECTS_H
#define GPUSIM_OBJECTS_H

#include <stdint.h>

#define NO_GPU (-1)

struct object {
    uint32_t client, handle, class;
    int gpu; /* that it belongs to; NO_GPU above the devices */
    uint64_t charged_bytes;
    struct object *parent, *first_child, *previous, *next;
    struct object *next_of_bucket;
};

/* NULL for an unknown one. */
struct object *object_find(uint32_t client, uint32_t handle);

/* Under a parent, whose GPU it has; NULL when the process has no memory left. */
struct object *object_add(uint32_t client, uint32_t handle, uint32_t class, struct object *parent);

/* With all below it; `gone` is called for each. */
void object_remove(struct object *object, void (*gone)(const struct object *object));

#endif
