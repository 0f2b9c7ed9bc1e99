/* This process's own entry in the ledger. Every function but accounting_outcome needs the driver lock. */
#ifndef GPUSIM_ACCOUNTING_H
#define GPUSIM_ACCOUNTING_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "ledger.h"
#include "shared_handle.h"

/* Opens the ledger and takes a slot; CUDA_SUCCESS, or why the driver cannot start. */
CUresult accounting_start(void);

/* Gives the slot back: the process holds nothing any more. */
void accounting_end(void);

/* Forgets the slot without touching it: it belongs to the parent of this forked process, which keeps what is in it. */
void accounting_disown(void);

/* The mapped ledger: device count, sizes and UUIDs. NULL before accounting_start. */
const struct ledger *accounting_ledger(void);

/* Takes `bytes` of a device's memory; false when the device, over all living processes, has not that much left. */
bool accounting_occupy(int device, uint64_t bytes);
void accounting_vacate(int device, uint64_t bytes);

/*
 * Another process's memory came under an object of this one's, or that object is freed. It is charged to who made it, until that one frees it
 * or ends: then to the first of the others.
 */
void accounting_import(int device, const struct shared_description *description, uint32_t object);
void accounting_drop_import(uint32_t object);

/* An object of this process's is freed that others may have. */
void accounting_give_up(uint32_t object);

/* A number for a client of the kernel driver: no other process's client has it. */
uint32_t accounting_new_client(void);

/* What all living processes use of a device; reaps dead ones first. */
uint64_t accounting_device_used_bytes(int device);

/* A context appeared on a device or left it, or its share grew or shrank; the bytes themselves are occupied and vacated apart. */
void accounting_context_opened(int device);
void accounting_context_closed(int device);
void accounting_context_resized(int device, int64_t more_bytes);

/* Live bytes of a kind, without an allocation or free of their own (pool backing, memory that goes with its context). */
void accounting_add(int device, enum ledger_kind kind, uint64_t bytes);
void accounting_remove(int device, enum ledger_kind kind, uint64_t bytes);

/* The same for one allocation or one explicit free, which are counted too. */
void accounting_allocated(int device, enum ledger_kind kind, uint64_t bytes);
void accounting_freed(int device, enum ledger_kind kind, uint64_t bytes);

void accounting_host_allocated(enum ledger_host_kind kind, uint64_t bytes);
void accounting_host_freed(enum ledger_host_kind kind, uint64_t bytes);
void accounting_host_dropped(enum ledger_host_kind kind, uint64_t bytes);

/* Takes another process's memory off its devices, or puts it back; CUDA_ERROR_OUT_OF_MEMORY when it no longer fits. */
CUresult accounting_suspend(int tgid, bool suspended);

/* Passes the result of an allocation call on, and counts it where it is an error. */
CUresult accounting_outcome(CUresult result);

#endif
