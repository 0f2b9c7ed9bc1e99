#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accounting.h"
#include "device.h"

static int visible[LEDGER_DEVICES];
static int visible_count = -1;

static void format_uuid(int device, char text[41])
{
    const uint8_t *bytes = accounting_ledger()->uuid[device];
    int length = sprintf(text, "GPU-");
    for (int index = 0; index < 16; index++) {
        const char *dash = index == 4 || index == 6 || index == 8 || index == 10 ? "-" : "";
        length += sprintf(text + length, "%s%02x", dash, bytes[index]);
    }
}

/* A UUID may be shortened to a prefix that only one device has. */
static int device_with_uuid(const char *prefix)
{
    int found = -1;
    for (int device = 0; device < (int)accounting_ledger()->device_count; device++) {
        char uuid[41];
        format_uuid(device, uuid);
        if (strncmp(uuid, prefix, strlen(prefix)) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = device;
    }
    return found;
}

static int device_named(const char *name)
{
    if (strncmp(name, "GPU-", 4) == 0)
        return device_with_uuid(name);
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

/* As the driver does: the list ends at the first entry that names no device, and a repeated device leaves none. */
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
    return visible_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
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
