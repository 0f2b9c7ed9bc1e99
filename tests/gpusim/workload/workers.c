#include "workers.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands.h"

enum { MOST_WORKERS = 64, LONGEST_NAME = 32 };
enum worker_kind { NONE, THREAD, CHILD };

struct worker {
    enum worker_kind kind;
    char name[LONGEST_NAME];
    int commands, replies; /* the controller's ends of the two pipes */
    pid_t process;
};

static struct worker workers[MOST_WORKERS];

/* The file descriptors that a thread reads from and writes to. */
struct ends {
    int input, output;
};

static struct worker *find(const char *name, size_t length)
{
    for (int index = 0; index < MOST_WORKERS; index++) {
        struct worker *worker = &workers[index];
        if (worker->kind != NONE && strlen(worker->name) == length && strncmp(worker->name, name, length) == 0)
            return worker;
    }
    return NULL;
}

static struct worker *reserve(const char *name, struct ends *ends)
{
    int commands[2], replies[2];
    if (find(name, strlen(name)))
        return NULL;
    for (int index = 0; index < MOST_WORKERS; index++) {
        struct worker *worker = &workers[index];
        if (worker->kind != NONE)
            continue;
        if (pipe(commands) != 0 || pipe(replies) != 0)
            return NULL;
        snprintf(worker->name, LONGEST_NAME, "%s", name);
        worker->commands = commands[1];
        worker->replies = replies[0];
        *ends = (struct ends){.input = commands[0], .output = replies[1]};
        return worker;
    }
    return NULL;
}

static void *serve(void *argument)
{
    struct ends ends = *(struct ends *)argument;
    free(argument);
    command_loop(ends.input, ends.output);
    return NULL;
}

bool worker_start_thread(const char *name)
{
    struct ends *ends = malloc(sizeof *ends);
    struct worker *worker = ends ? reserve(name, ends) : NULL;
    pthread_t thread;
    if (!worker || pthread_create(&thread, NULL, serve, ends) != 0) {
        free(ends);
        return false;
    }
    pthread_detach(thread);
    worker->kind = THREAD;
    return true;
}

/* Sets up a forked child in the parent. */
static pid_t adopt(struct worker *worker, const struct ends *ends, pid_t process)
{
    close(ends->input);
    close(ends->output);
    if (process > 0) {
        worker->kind = CHILD;
        worker->process = process;
    }
    return process;
}

pid_t worker_fork(const char *name)
{
    struct ends ends;
    struct worker *worker = reserve(name, &ends);
    if (!worker)
        return -1;
    pid_t process = fork();
    if (process == 0) {
        close(worker->commands);
        close(worker->replies);
        memset(workers, 0, sizeof workers);
        command_loop(ends.input, ends.output);
        exit(0);
    }
    return adopt(worker, &ends, process);
}

pid_t worker_vfork_exec(const char *name)
{
    struct ends ends;
    struct worker *worker = reserve(name, &ends);
    if (!worker)
        return -1;
    pid_t process = vfork();
    if (process == 0) {
        close(worker->commands);
        close(worker->replies);
        dup2(ends.input, STDIN_FILENO);
        dup2(ends.output, STDOUT_FILENO);
        execl("/proc/self/exe", "gpusim-workload", (char *)NULL);
        _exit(127);
    }
    return adopt(worker, &ends, process);
}

int worker_wait(const char *name)
{
    struct worker *worker = find(name, strlen(name));
    int status;
    if (!worker || worker->kind != CHILD)
        return -1;
    close(worker->commands);
    if (waitpid(worker->process, &status, 0) < 0)
        status = -1;
    close(worker->replies);
    worker->kind = NONE;
    return status;
}

static bool read_reply(int replies, char *reply, size_t room)
{
    size_t length = 0;
    while (length + 1 < room && read(replies, reply + length, 1) == 1) {
        if (reply[length] == '\n') {
            reply[length] = '\0';
            return true;
        }
        length++;
    }
    return false;
}

void worker_run(const char *line, char *reply, size_t room)
{
    size_t length = strcspn(line, " ");
    struct worker *worker = find(line, length);
    if (!worker || !line[length]) {
        snprintf(reply, room, "{\"error\":\"no such worker, or no command for it\"}");
        return;
    }
    dprintf(worker->commands, "%s\n", line + length + 1);
    if (!read_reply(worker->replies, reply, room))
        snprintf(reply, room, "{\"ended\":\"%s\"}", worker->name);
}
