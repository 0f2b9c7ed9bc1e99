#include "model.h"

#include <stdio.h>

#include "settings.h"

void model_name(const struct ledger *ledger, int device, char *text, size_t length)
{
    unsigned long long gibibytes = (ledger->total_bytes[device] / MEBIBYTE + 512) / 1024;
    if (ledger->mig)
        snprintf(text, length, "%s MIG 1g.%llugb", GPU_NAME, gibibytes);
    else
        snprintf(text, length, "%s", GPU_NAME);
}

int model_pci_bus(const struct ledger *ledger, int device)
{
    return ledger->mig ? FIRST_PCI_BUS : FIRST_PCI_BUS + device;
}

static void format_uuid(const char *prefix, const uint8_t bytes[16], char text[UUID_TEXT])
{
    int length = sprintf(text, "%s", prefix);
    for (int index = 0; index < 16; index++) {
        const char *dash = index == 4 || index == 6 || index == 8 || index == 10 ? "-" : "";
        length += sprintf(text + length, "%s%02x", dash, bytes[index]);
    }
}

void model_uuid(const struct ledger *ledger, int device, char text[UUID_TEXT])
{
    format_uuid(ledger->mig ? "MIG-" : "GPU-", ledger->uuid[device], text);
}

void model_parent_uuid(const struct ledger *ledger, char text[UUID_TEXT])
{
    format_uuid("GPU-", ledger->parent_uuid, text);
}
