#include "objects.h"

#include <stdlib.h>

#define BUCKETS 16384u

static struct object *buckets[BUCKETS];

static struct object **bucket_of(uint32_t client, uint32_t handle)
{
    return &buckets[(handle ^ client * 0x9e3779b1u) % BUCKETS];
}

struct object *object_find(uint32_t client, uint32_t handle)
{
    struct object *object = *bucket_of(client, handle);
    while (object && (object->client != client || object->handle != handle))
        object = object->next_of_bucket;
    return object;
}

struct object *object_add(uint32_t client, uint32_t handle, uint32_t class, struct object *parent)
{
    struct object *object = calloc(1, sizeof *object);
    if (!object)
        return NULL;
    struct object **bucket = bucket_of(client, handle);
    *object = (struct object){
        .client = client, .handle = handle, .class = class, .gpu = parent ? parent->gpu : NO_GPU, .parent = parent,
        .next_of_bucket = *bucket};
    *bucket = object;
    if (parent) {
        object->next = parent->first_child;
        if (object->next)
            object->next->previous = object;
        parent->first_child = object;
    }
    return object;
}

static void unlink_object(struct object *object)
{
    struct object **link = bucket_of(object->client, object->handle);
    while (*link != object)
        link = &(*link)->next_of_bucket;
    *link = object->next_of_bucket;
    if (object->next)
        object->next->previous = object->previous;
    if (object->previous)
        object->previous->next = object->next;
    else if (object->parent)
        object->parent->first_child = object->next;
}

void object_remove(struct object *object, void (*gone)(const struct object *object))
{
    while (object->first_child)
        object_remove(object->first_child, gone);
    unlink_object(object);
    gone(object);
    free(object);
}
