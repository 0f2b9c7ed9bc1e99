#include "replay.h"

#include "accounting.h"
#include "driver.h"
#include "rm.h"
#include "rm_files.h"

#define EXPORTED __attribute__((visibility("default")))

static bool is_listed[LEDGER_DEVICES];

EXPORTED CUresult gpusim_replay_open(void)
{
    return driver_start_bare();
}

EXPORTED const struct rm_layout *gpusim_replay_layout(void)
{
    return rm_layout();
}

static void list_or_not(int gpu)
{
    bool is_charged = gpusim_device_charged_bytes(gpu) != 0;
    if (is_charged == is_listed[gpu])
        return;
    if (is_charged)
        accounting_context_opened(gpu);
    else
        accounting_context_closed(gpu);
    is_listed[gpu] = is_charged;
}

EXPORTED bool gpusim_replay_send(
    enum device_file file, uint32_t number, void *argument, uint32_t bytes, const struct device_answer *answer)
{
    if (driver_enter() != CUDA_SUCCESS)
        return false;
    if (answer)
        gpusim_device_answer(answer);
    bool answered = file == DEVICE_UVM ? uvm_send(number, argument) : rm_send(file, number, argument, bytes);
    for (int gpu = 0; gpu < (int)accounting_ledger()->device_count; gpu++)
        list_or_not(gpu);
    driver_leave();
    return answered;
}
