/* Named helpers of the script: threads of this process, and forked children. `@NAME command` runs on one of them. */
#ifndef WORKLOAD_WORKERS_H
#define WORKLOAD_WORKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Starts a thread; false when the name is taken or there are too many. */
bool worker_start_thread(const char *name);

/* Forks a child that waits for its commands; its process id, or -1. */
pid_t worker_fork(const char *name);

/* The same with a child that is this program again, by vfork and exec. */
pid_t worker_vfork_exec(const char *name);

/* Waits for a child to end; its wait status, or -1 for a name that is no child. */
int worker_wait(const char *name);

/* Runs "NAME command ..." on that worker and waits for its one line of JSON. */
void worker_run(const char *line, char *reply, size_t room);

#endif
