/* This process's entry in the ledger. Every function but accounting_outcome and accounting_kernel needs the driver lock. */
#ifndef GPUSIM_ACCOUNTING_H
#define GPUSIM_ACCOUNTING_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "ledger.h"
#include "shared_handle.h"

/* Opens the ledger and takes a slot; returns CUDA_SUCCESS, or the reason why the driver cannot start. */
CUresult accounting_start(void);

/* Empties and releases the slot, with all memory of the process. */
void accounting_end(void);

/* Forgets the slot without changing it, in a forked child: the slot belongs to the parent. */
void accounting_disown(void);

/* The mapped ledger: device count, sizes and UUIDs. NULL before accounting_start. */
const struct ledger *accounting_ledger(void);

/* Takes `bytes` of a device's memory; false if the device has too little left, over all living processes. */
bool accounting_occupy(int device, uint64_t bytes);
void accounting_vacate(int device, uint64_t bytes);

/*
 * An object of this process starts or stops to refer to another process's memory. That memory is charged to its creator until the creator frees it
 * or exits, and then to the first of the other processes.
 */
void accounting_import(int device, const struct shared_description *description, uint32_t object);
void accounting_drop_import(uint32_t object);

/* Records that this process has freed an object that others may have imported. */
void accounting_give_up(uint32_t object);

/* Returns a client number for the kernel driver that is unique among all processes. */
uint32_t accounting_new_client(void);

/* Returns the memory of a device used by all living processes; reaps dead processes first. */
uint64_t accounting_device_used_bytes(int device);

/* Records that a context was opened, closed or resized on a device; its bytes are occupied and vacated separately. */
void accounting_context_opened(int device);
void accounting_context_closed(int device);
void accounting_context_resized(int device, int64_t more_bytes);

/* Adds or removes live bytes of a kind without counting a call (pool backing, memory freed with its context). */
void accounting_add(int device, enum ledger_kind kind, uint64_t bytes);
void accounting_remove(int device, enum ledger_kind kind, uint64_t bytes);

/* The same for one allocation or one explicit free, which are also counted. */
void accounting_allocated(int device, enum ledger_kind kind, uint64_t bytes);
void accounting_freed(int device, enum ledger_kind kind, uint64_t bytes);

/* Records a kernel that takes time, and its end (CLOCK_MONOTONIC, nanoseconds). Needs no lock. */
void accounting_kernel(uint64_t end_ns, uint64_t takes_ns);

void accounting_host_allocated(enum ledger_host_kind kind, uint64_t bytes);
void accounting_host_freed(enum ledger_host_kind kind, uint64_t bytes);
void accounting_host_dropped(enum ledger_host_kind kind, uint64_t bytes);

/* Takes another process's memory off its devices, or restores it; CUDA_ERROR_OUT_OF_MEMORY if it does not fit. */
CUresult accounting_suspend(int tgid, bool suspended);

/* Returns the result of an allocation call, and counts it if it is an error. */
CUresult accounting_outcome(CUresult result);

#endif
