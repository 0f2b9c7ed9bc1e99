/* Handling of decoded requests by the resource manager (RM) and UVM. */
#ifndef GPUSIM_RESOURCE_MANAGER_H
#define GPUSIM_RESOURCE_MANAGER_H

#include "device_library.h"
#include "journal.h"

/* Each sets the request's status and the granted values. */
void manager_allocate(struct request *request, const void *parameters);
void manager_free(struct request *request);
void manager_duplicate(struct request *request);
void manager_control(struct request *request, void *parameters);

/* Checks that the memory to map exists. */
void manager_map(struct request *request);

const struct device_machine *manager_machine(void);

#endif
