/* Named workers of the script: threads of this process, and forked children. `@NAME command` runs a command on one of them. */
#ifndef WORKLOAD_WORKERS_H
#define WORKLOAD_WORKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Starts a thread; false if the name is taken or there are too many. */
bool worker_start_thread(const char *name);

/* Forks a child that waits for commands; returns its process id, or -1. */
pid_t worker_fork(const char *name);

/* Starts a child that runs this program again, by vfork and exec. */
pid_t worker_vfork_exec(const char *name);

/* Waits for a child to exit; returns its wait status, or -1 if no child has this name. */
int worker_wait(const char *name);

/* Runs "NAME command ..." on that worker and waits for its one line of JSON. */
void worker_run(const char *line, char *reply, size_t room);

#endif
