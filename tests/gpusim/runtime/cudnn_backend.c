/*
 * cuDNN's graph interface: a caller describes an operation by setting attributes on descriptors, queries which engines can run
 * it, and executes a plan. Here every descriptor stores its attributes, one engine runs everything, and nothing is computed.
 */
#include "cudnn.h"
#include "stand_in.h"

#include <stdlib.h>
#include <string.h>

/* cudnnBackendAttributeName_t: the attributes computed by the library. */
enum {
    HEURISTIC_RESULTS = 202,
    CONFIGURATION_ENGINE = 300,
    PLAN_WORKSPACE_BYTES = 402,
    GRAPH_ENGINE_COUNT = 802,
    ENGINE_INDEX = 1301,
};

enum { DEFAULT_WORKSPACE_MIB = 16 };

struct attribute {
    int name;
    int64_t count;
    void *values;
    struct attribute *next;
};

struct descriptor {
    int kind;
    struct attribute *attributes;
};

/* cudnnBackendAttributeType_t: all enumerations are ints. */
static size_t value_bytes(int type)
{
    enum { HANDLE = 0, BOOLEAN = 2, INT64 = 3, DOUBLE = 5, POINTER = 6, DESCRIPTOR = 15, CHARACTER = 24, FRACTION = 26 };
    switch (type) {
    case BOOLEAN:
    case CHARACTER:
        return 1;
    case HANDLE:
    case INT64:
    case DOUBLE:
    case POINTER:
    case DESCRIPTOR:
        return 8;
    case FRACTION:
        return 16;
    default:
        return 4;
    }
}

static struct attribute *find(const struct descriptor *descriptor, int name)
{
    struct attribute *attribute = descriptor->attributes;
    while (attribute && attribute->name != name)
        attribute = attribute->next;
    return attribute;
}

EXPORT status cudnnBackendCreateDescriptor(int kind, struct descriptor **descriptor)
{
    *descriptor = calloc(1, sizeof **descriptor);
    if (!*descriptor)
        return ALLOCATION_FAILED;
    (*descriptor)->kind = kind;
    return SUCCESS;
}

EXPORT status cudnnBackendDestroyDescriptor(struct descriptor *descriptor)
{
    struct attribute *attribute = descriptor ? descriptor->attributes : NULL;
    while (attribute) {
        struct attribute *const next = attribute->next;
        free(attribute->values);
        free(attribute);
        attribute = next;
    }
    free(descriptor);
    return SUCCESS;
}

EXPORT status cudnnBackendSetAttribute(struct descriptor *descriptor, int name, int type, int64_t count,
                                       const void *values)
{
    struct attribute *attribute = find(descriptor, name);
    if (!attribute) {
        attribute = calloc(1, sizeof *attribute);
        if (!attribute)
            return ALLOCATION_FAILED;
        attribute->name = name;
        attribute->next = descriptor->attributes;
        descriptor->attributes = attribute;
    }
    const size_t bytes = value_bytes(type) * (size_t)count;
    free(attribute->values);
    attribute->count = count;
    attribute->values = malloc(bytes + 1);
    if (!attribute->values)
        return ALLOCATION_FAILED;
    if (values)
        memcpy(attribute->values, values, bytes);
    return SUCCESS;
}

EXPORT status cudnnBackendFinalize(struct descriptor *descriptor)
{
    (void)descriptor;
    return SUCCESS;
}

EXPORT status cudnnBackendExecute(void *handle, struct descriptor *plan, struct descriptor *variables)
{
    (void)handle, (void)plan, (void)variables;
    return SUCCESS;
}

static void copy_attribute(const struct descriptor *descriptor, int name, size_t each_bytes, int64_t wanted,
                           int64_t *given, void *values)
{
    const struct attribute *const attribute = find(descriptor, name);
    if (!attribute) {
        log_line(LOG_NO_OPERATION, "cuDNN descriptor of kind %d has no attribute %d", descriptor->kind, name);
        *given = 0;
        return;
    }
    const int64_t copied = attribute->count < wanted ? attribute->count : wanted;
    *given = attribute->count;
    if (values && copied > 0)
        memcpy(values, attribute->values, each_bytes * (size_t)copied);
}

EXPORT status cudnnBackendGetAttribute(const struct descriptor *descriptor, int name, int type, int64_t wanted,
                                       int64_t *given, void *values)
{
    int64_t ignored;
    int64_t *const count = given ? given : &ignored;
    *count = 1;
    switch (name) {
    case HEURISTIC_RESULTS:
    case CONFIGURATION_ENGINE:
        /* The caller passes a descriptor to be filled; it needs no contents. */
        return SUCCESS;
    case PLAN_WORKSPACE_BYTES:
        if (values)
            *(int64_t *)values = settings_number("GPUSIM_CUDNN_WORKSPACE_MB", DEFAULT_WORKSPACE_MIB) << 20;
        return SUCCESS;
    case GRAPH_ENGINE_COUNT:
        if (values)
            *(int64_t *)values = 1;
        return SUCCESS;
    case ENGINE_INDEX:
        if (values)
            *(int64_t *)values = 0;
        return SUCCESS;
    default:
        copy_attribute(descriptor, name, value_bytes(type), wanted, count, values);
        return SUCCESS;
    }
}
