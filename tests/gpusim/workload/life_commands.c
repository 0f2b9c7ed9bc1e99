/* Processes and threads that end or continue in unusual ways. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands.h"
#include "driver.h"
#include "workers.h"

/* ---- fault ---- */

enum fault_end { THREAD, PROCESS, PROGRAM };

static volatile sig_atomic_t fault_end;

static void end_at_fault(int signal)
{
    (void)signal;
    if (fault_end == PROCESS)
        kill(getpid(), SIGKILL);
    if (fault_end == PROGRAM)
        execl("/proc/self/exe", "gpusim-workload", (char *)NULL);
    syscall(SYS_exit, 0);
}

/* Makes the driver write its result to an unmapped address. */
static void *fault_inside_driver(void *argument)
{
    CUuuid *nowhere = (CUuuid *)argument;
    driver.device_uuid(nowhere, 0);
    return NULL;
}

/* fault thread|process|exec: ends the thread or process, or executes this program again, inside a driver call */
static void run_fault(struct call *call)
{
    static const char *const ends[] = {"thread", "process", "exec"};
    int end = THREAD;
    while (end <= PROGRAM && !call_is(call, 1, ends[end]))
        end++;
    if (end > PROGRAM) {
        call_fail(call, "fault thread|process|exec");
        return;
    }
    fault_end = end;
    struct sigaction action = {.sa_handler = end_at_fault};
    sigaction(SIGSEGV, &action, NULL);
    pthread_t thread;
    if (pthread_create(&thread, NULL, fault_inside_driver, (void *)16) != 0) {
        call_fail(call, "no thread to be had");
        return;
    }
    pthread_join(thread, NULL);
    call_result(call, CUDA_SUCCESS);
}

/* ---- leaderexit ---- */

static void *go_on(void *argument)
{
    (void)argument;
    command_loop(STDIN_FILENO, STDOUT_FILENO);
    _exit(0);
}

/* leaderexit: the main thread exits, and another one reads the rest of the input */
static void run_leader_exit(struct call *call)
{
    pthread_t thread;
    if (getpid() != gettid() || pthread_create(&thread, NULL, go_on, NULL) != 0) {
        call_fail(call, "only the main thread can");
        return;
    }
    call_result(call, CUDA_SUCCESS);
    dprintf(STDOUT_FILENO, "%s\n", call_finish(call));
    /* pthread_exit() would unwind through the loop that has just replied. */
    syscall(SYS_exit, 0);
}

/* ---- vforkexec ---- */

static void run_vfork_exec(struct call *call)
{
    pid_t child = worker_vfork_exec(call_word(call, 1));
    if (child < 0)
        call_fail(call, "vforkexec NAME, with a name not in use");
    else
        call_reply_number(call, "tgid", (uint64_t)child);
}

/* ---- herd ---- */

static CUresult take_and_leave(size_t bytes)
{
    CUcontext context;
    CUdeviceptr address;
    CUresult result = driver.init(0);
    if (result == CUDA_SUCCESS)
        result = driver.primary_retain(&context, 0);
    if (result == CUDA_SUCCESS)
        result = driver.context_set(context);
    return result == CUDA_SUCCESS ? driver.allocate(&address, bytes) : result;
}

/* herd COUNT BYTES: forks this many children, one after another, that allocate and exit without freeing */
static void run_herd(struct call *call)
{
    uint64_t count = call_number(call, 1, 0);
    size_t bytes = call_number(call, 2, 0);
    uint64_t granted = 0;
    if (call->failed)
        return;
    for (uint64_t index = 0; index < count; index++) {
        pid_t child = fork();
        if (child == 0)
            _exit(take_and_leave(bytes) == CUDA_SUCCESS ? 0 : 1);
        int status;
        granted += child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    call_result(call, CUDA_SUCCESS);
    call_reply_number(call, "granted", granted);
}

const struct command life_commands[] = {
    {"fault", 2, run_fault},
    {"leaderexit", 1, run_leader_exit},
    {"vforkexec", 2, run_vfork_exec},
    {"herd", 3, run_herd},
    {0},
};
