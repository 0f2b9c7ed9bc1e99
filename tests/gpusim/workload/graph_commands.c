#include "commands.h"
#include "driver.h"

static void run_capture(struct call *call)
{
    enum { MODE_RELAXED = 2 };
    call_result(call, driver.capture_begin((CUstream)call_number(call, 1, 0), MODE_RELAXED));
}

/* endcapture GRAPH STREAM */
static void run_end_capture(struct call *call)
{
    CUgraph graph = NULL;
    CUstream stream = (CUstream)call_number(call, 2, 0);
    CUresult result = driver.capture_end(stream, &graph);
    call_result_variable(call, result, call_word(call, 1), (uint64_t)graph);
}

/* instantiate NAME GRAPH */
static void run_instantiate(struct call *call)
{
    CUgraphExec executable = NULL;
    CUgraph graph = (CUgraph)call_number(call, 2, 0);
    CUresult result = driver.graph_instantiate(&executable, graph, 0);
    call_result_variable(call, result, call_word(call, 1), (uint64_t)executable);
}

static void run_launch(struct call *call)
{
    CUgraphExec executable = (CUgraphExec)call_number(call, 1, 0);
    call_result(call, driver.graph_launch(executable, (CUstream)call_number(call, 2, 0)));
}

static void run_graph_destroy(struct call *call)
{
    call_result(call, driver.graph_destroy((CUgraph)call_number(call, 1, 0)));
}

static void run_executable_destroy(struct call *call)
{
    call_result(call, driver.graph_executable_destroy((CUgraphExec)call_number(call, 1, 0)));
}

static void run_trim(struct call *call)
{
    call_result(call, driver.graph_trim((CUdevice)call_number(call, 1, 0)));
}

const struct command graph_commands[] = {
    {"capture", 2, run_capture},
    {"endcapture", 3, run_end_capture},
    {"instantiate", 3, run_instantiate},
    {"launch", 2, run_launch},
    {"graphdestroy", 2, run_graph_destroy},
    {"execdestroy", 2, run_executable_destroy},
    {"graphtrim", 2, run_trim},
    {0},
};
