#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accounting.h"
#include "device.h"
#include "model.h"

static int visible[LEDGER_DEVICES];
static int visible_count = -1;

/* A UUID may be abbreviated to a prefix that is unique. */
static int device_with_uuid(const char *prefix)
{
    int found = -1;
    for (int device = 0; device < (int)accounting_ledger()->device_count; device++) {
        char uuid[UUID_TEXT];
        model_uuid(accounting_ledger(), device, uuid);
        if (strncmp(uuid, prefix, strlen(prefix)) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = device;
    }
    return found;
}

/* The UUID and the index of the whole GPU select its first instance. */
static bool names_parent(const char *name)
{
    char uuid[UUID_TEXT];
    model_parent_uuid(accounting_ledger(), uuid);
    return strcmp(name, "0") == 0 || (strncmp(name, "GPU-", 4) == 0 && strncmp(uuid, name, strlen(name)) == 0);
}

static int device_named(const char *name)
{
    if (accounting_ledger()->mig && names_parent(name))
        return 0;
    if (strncmp(name, "GPU-", 4) == 0 || strncmp(name, "MIG-", 4) == 0)
        return device_with_uuid(name);
    if (accounting_ledger()->mig)
        return -1;
    char *end;
    long index = strtol(name, &end, 10);
    bool is_number = end != name && *end == '\0';
    return is_number && index >= 0 && index < (long)accounting_ledger()->device_count ? (int)index : -1;
}

static bool is_visible(int device)
{
    for (int ordinal = 0; ordinal < visible_count; ordinal++)
        if (visible[ordinal] == device)
            return true;
    return false;
}

/* As in the driver: the list ends at the first invalid entry, and a repeated device makes it empty. */
static void read_list(const char *list)
{
    char text[512];
    snprintf(text, sizeof text, "%s", list);
    char *rest = text;
    char *name;
    while ((name = strsep(&rest, ","))) {
        while (isspace((unsigned char)*name))
            name++;
        int device = device_named(name);
        if (device < 0)
            return;
        if (is_visible(device)) {
            visible_count = 0;
            return;
        }
        visible[visible_count++] = device;
    }
}

CUresult devices_start(void)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    visible_count = 0;
    if (list)
        read_list(list);
    else
        while (visible_count < (int)accounting_ledger()->device_count) {
            visible[visible_count] = visible_count;
            visible_count++;
        }
    if (accounting_ledger()->mig && visible_count > 1)
        visible_count = 1;
    return visible_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

const int *devices_visible(void)
{
    return visible;
}

int device_visible_count(void)
{
    return visible_count;
}

CUresult device_of_ordinal(CUdevice ordinal, int *device)
{
    if (visible_count <= 0)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= visible_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = visible[ordinal];
    return CUDA_SUCCESS;
}

CUdevice device_ordinal(int device)
{
    for (int ordinal = 0; ordinal < visible_count; ordinal++)
        if (visible[ordinal] == device)
            return ordinal;
    return -1;
}
