#include "liveness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct process_status {
    char state;
    long threads;
    uint64_t start_time_ticks;
    uint64_t stack_start;
};

/* Indices of fields in /proc/<tgid>/stat, counted from the state, which follows the command in parentheses. */
enum { THREADS = 17, START_TIME = 19, STACK_START = 25 };

static bool parse_status(char *text, struct process_status *status)
{
    char *after_command = strrchr(text, ')');
    if (!after_command)
        return false;
    memset(status, 0, sizeof *status);
    char *rest = after_command + 1;
    char *field;
    for (int position = 0; (field = strtok_r(rest, " ", &rest)); position++) {
        if (position == 0)
            status->state = field[0];
        else if (position == THREADS)
            status->threads = atol(field);
        else if (position == START_TIME)
            status->start_time_ticks = strtoull(field, NULL, 10);
        else if (position == STACK_START)
            status->stack_start = strtoull(field, NULL, 10);
    }
    return status->start_time_ticks != 0;
}

/* Inode of the initial pid namespace (include/linux/proc_ns.h of the kernel). */
static const uint64_t FIRST_PID_NAMESPACE = 0xEFFFFFFC;

/* The path of the host's /proc, for a process in its own pid namespace (a container). Otherwise the process's own /proc. */
static const char *machine_proc(void)
{
    const char *directory = getenv("GPUSIM_PROC");
    return directory && *directory ? directory : NULL;
}

static bool read_status(int tgid, struct process_status *status)
{
    char path[256];
    char text[2048];
    const char *machine = machine_proc();
    snprintf(path, sizeof path, "%s/%d/stat", machine ? machine : "/proc", tgid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return false;
    text[length] = '\0';
    return parse_status(text, status);
}

/* The host's process id of this process: the target of `self` in that /proc. */
static int own_tgid(void)
{
    char path[256];
    char number[16];
    const char *machine = machine_proc();
    if (!machine)
        return getpid();
    snprintf(path, sizeof path, "%s/self", machine);
    ssize_t length = readlink(path, number, sizeof number - 1);
    if (length <= 0)
        return getpid();
    number[length] = '\0';
    return atoi(number);
}

static uint64_t pid_namespace(void)
{
    if (machine_proc())
        return FIRST_PID_NAMESPACE;
    struct stat information;
    return stat("/proc/self/ns/pid", &information) == 0 ? information.st_ino : 0;
}

struct process_identity identity_of_this_process(void)
{
    struct process_identity identity = {.tgid = own_tgid(), .pid_namespace = pid_namespace()};
    struct process_status status;
    if (read_status(identity.tgid, &status)) {
        identity.start_time_ticks = status.start_time_ticks;
        identity.stack_start = status.stack_start;
    }
    return identity;
}

bool identity_is_alive(const struct process_identity *identity)
{
    if (identity->pid_namespace != pid_namespace())
        return true;
    struct process_status status;
    if (!read_status(identity->tgid, &status))
        return !machine_proc() && !(kill(identity->tgid, 0) < 0 && errno == ESRCH);
    bool ended = (status.state == 'Z' || status.state == 'X') && status.threads <= 1;
    bool reused = identity->start_time_ticks && identity->start_time_ticks != status.start_time_ticks;
    bool replaced = identity->stack_start && status.stack_start && identity->stack_start != status.stack_start;
    return !ended && !reused && !replaced;
}
