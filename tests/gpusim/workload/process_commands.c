#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "commands.h"
#include "driver.h"
#include "ledger_status.h"
#include "workers.h"

static void run_thread(struct call *call)
{
    if (!call_is(call, 1, "start") || !worker_start_thread(call_word(call, 2)))
        call_fail(call, "thread start NAME, with a name not in use");
    else
        call_result(call, CUDA_SUCCESS);
}

static void run_fork(struct call *call)
{
    pid_t child = worker_fork(call_word(call, 1));
    if (child < 0)
        call_fail(call, "fork NAME, with a name not in use");
    else
        call_reply_number(call, "tgid", (uint64_t)child);
}

static void run_wait(struct call *call)
{
    int status = worker_wait(call_word(call, 1));
    if (status < 0)
        call_fail(call, "wait NAME, of a forked child");
    else if (WIFEXITED(status))
        call_reply_number(call, "exit_code", (uint64_t)WEXITSTATUS(status));
    else
        call_reply_number(call, "signal", (uint64_t)WTERMSIG(status));
}

/* exec [PROGRAM ARGUMENTS...]: without a program, this one again, which continues with the same input */
static void run_exec(struct call *call)
{
    static char *again[] = {"/proc/self/exe", NULL};
    char **program = call->count > 1 ? call->words + 1 : again;
    call->words[call->count < MOST_WORDS ? call->count : MOST_WORDS - 1] = NULL;
    execvp(program[0], program);
    call_fail(call, "cannot execute it");
}

static void run_tgid(struct call *call)
{
    call_result_variable(call, CUDA_SUCCESS, "tgid", (uint64_t)getpid());
}

static void run_status(struct call *call)
{
    char json[LONGEST_REPLY / 2];
    if (ledger_status(getpid(), json, sizeof json))
        call_reply_json(call, "status", json);
    else
        call_reply_json(call, "status", "null");
}

static void run_sleep(struct call *call)
{
    uint64_t milliseconds = call_number(call, 1, 0);
    struct timespec pause = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

static void run_exit(struct call *call)
{
    exit((int)call_number(call, 1, 0));
}

static void run_kill(struct call *call)
{
    (void)call;
    kill(getpid(), SIGKILL);
}

/* takefd NAME TGID FD: duplicates another process's file descriptor, as SCM_RIGHTS does, but without a socket */
static void run_take_file(struct call *call)
{
    int process = (int)syscall(SYS_pidfd_open, (pid_t)call_number(call, 2, 0), 0);
    int file = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, (int)call_number(call, 3, 0), 0);
    if (process >= 0)
        close(process);
    if (file < 0)
        call_fail(call, "no such process or file, or not allowed");
    call_result_variable(call, CUDA_SUCCESS, call_word(call, 1), (uint64_t)file);
}

/* ioctl BYTES: calls ioctl in this program, on a pipe with this many bytes in it */
static void run_ioctl(struct call *call)
{
    static const char bytes[4096];
    size_t count = call_number(call, 1, 0);
    int pipe_ends[2];
    int readable = -1;
    if (count > sizeof bytes || pipe(pipe_ends) != 0) {
        call_fail(call, "ioctl BYTES, up to 4096");
        return;
    }
    ssize_t written = write(pipe_ends[1], bytes, count);
    int answer = ioctl(pipe_ends[0], FIONREAD, &readable);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    call_result(call, written == (ssize_t)count && answer == 0 ? CUDA_SUCCESS : CUDA_ERROR_SYSTEM_NOT_READY);
    call_reply_number(call, "readable", (uint64_t)readable);
}

/* graphics BYTES: memory taken by a graphics library with its own requests */
static void run_graphics(struct call *call)
{
    void *library = dlopen("libnvidia-glcore.so.1", RTLD_NOW);
    bool (*take)(uint32_t, uint64_t) = NULL;
    if (library)
        *(void **)&take = dlsym(library, "graphics_take");
    if (!take) {
        call_fail(call, "graphics BYTES, where libnvidia-glcore.so.1 is to be found");
        return;
    }
    bool granted = take(0, call_number(call, 1, 0));
    call_result(call, granted ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

/* title NAME: replaces the name and the command line, as setproctitle does */
static void run_title(struct call *call)
{
    const char *title = call_word(call, 1);
    size_t room = strlen(program_invocation_name);
    if (strlen(title) > room) {
        call_fail(call, "title NAME, not longer than argv[0]");
        return;
    }
    strncpy(program_invocation_name, title, room);
    prctl(PR_SET_NAME, title);
    call_result(call, CUDA_SUCCESS);
}

static void run_checkpoint(struct call *call)
{
    call_result(call, driver.checkpoint((int)call_number(call, 1, 0), NULL));
}

static void run_restore(struct call *call)
{
    call_result(call, driver.restore((int)call_number(call, 1, 0), NULL));
}

const struct command process_commands[] = {
    {"thread", 3, run_thread},
    {"fork", 2, run_fork},
    {"wait", 2, run_wait},
    {"exec", 1, run_exec},
    {"tgid", 1, run_tgid},
    {"status", 1, run_status},
    {"sleep", 2, run_sleep},
    {"exit", 2, run_exit},
    {"kill", 1, run_kill},
    {"takefd", 4, run_take_file},
    {"ioctl", 2, run_ioctl},
    {"graphics", 2, run_graphics},
    {"title", 2, run_title},
    {"checkpoint", 2, run_checkpoint},
    {"restore", 2, run_restore},
    {0},
};
