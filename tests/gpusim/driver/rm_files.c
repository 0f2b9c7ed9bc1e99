#include "rm_files.h"

#include <stdlib.h>
#include <string.h>

#include "accounting.h"
#include "log.h"
#include "rm_call.h"

static int files[3] = {-1, -1, -1};
static const struct rm_layout *layout;
static bool wraps, uses_heap;

/* GPUSIM_RM is a list of words: a layout, `xfer`, `heap`. */
static void read_setting(void)
{
    const char *setting = getenv("GPUSIM_RM");
    char text[64] = "";
    strncpy(text, setting ? setting : "", sizeof text - 1);
    layout = rm_layouts;
    char *rest = text;
    char *word;
    while ((word = strsep(&rest, ","))) {
        wraps |= strcmp(word, "xfer") == 0;
        uses_heap |= strcmp(word, "heap") == 0;
        for (size_t index = 0; index < sizeof rm_layouts / sizeof *rm_layouts; index++)
            if (strcmp(rm_layouts[index].name, word) == 0)
                layout = &rm_layouts[index];
    }
}

const uint8_t *rm_uuid(int gpu)
{
    const struct ledger *ledger = accounting_ledger();
    return ledger->mig ? ledger->parent_uuid : ledger->uuid[gpu];
}

bool rm_files_open(void)
{
    read_setting();
    const struct ledger *ledger = accounting_ledger();
    struct device_machine machine = {
        .gpus = (int)ledger->device_count, .mig = ledger->mig, .uuid = rm_uuid, .take = accounting_occupy,
        .give = accounting_vacate, .client = accounting_new_client, .layout = layout->name};
    gpusim_device_load(&machine);
    for (int file = DEVICE_CONTROL; file <= DEVICE_UVM; file++) {
        files[file] = gpusim_device_open((enum device_file)file);
        if (files[file] < 0) {
            log_line(LOG_ALWAYS, "no file for the kernel driver");
            return false;
        }
    }
    return true;
}

bool rm_files_are_open(void)
{
    return files[DEVICE_UVM] >= 0;
}

const struct rm_layout *rm_layout(void)
{
    return layout;
}

bool rm_uses_heap(void)
{
    return uses_heap;
}

bool rm_send(enum device_file file, uint32_t number, void *argument, uint32_t bytes)
{
    if (!wraps)
        return rm_call(files[file], RM_REQUEST(number, bytes), argument);
    uint8_t wrapped[RM_XFER_BYTES] = {0};
    put32(wrapped, XFER_AT_NUMBER, number);
    put32(wrapped, XFER_AT_BYTES, bytes);
    put_pointer(wrapped, XFER_AT_POINTER, argument);
    return rm_call(files[file], RM_REQUEST(RM_XFER, sizeof wrapped), wrapped);
}

bool uvm_send(uint32_t number, void *argument)
{
    return rm_call(files[DEVICE_UVM], number, argument);
}
