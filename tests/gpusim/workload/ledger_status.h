/* What the ledger says of a process, as JSON. */
#ifndef WORKLOAD_LEDGER_STATUS_H
#define WORKLOAD_LEDGER_STATUS_H

#include <stdbool.h>
#include <stddef.h>

/* Writes a JSON object; false when the ledger has no entry for the process. */
bool ledger_status(int tgid, char *json, size_t room);

#endif
