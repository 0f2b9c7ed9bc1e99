/* The state of a process in the ledger, as JSON. */
#ifndef WORKLOAD_LEDGER_STATUS_H
#define WORKLOAD_LEDGER_STATUS_H

#include <stdbool.h>
#include <stddef.h>

/* Writes a JSON object; false if the ledger has no entry for the process. */
bool ledger_status(int tgid, char *json, size_t room);

#endif
