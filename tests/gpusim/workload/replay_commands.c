/* Repeats the requests in the log of a real driver's process one by one; see README.md for the columns that are read. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "replay.h"

enum column {
    PROCESS = 1,
    EVENT = 3,
    NAME = 4,
    REQUEST = 6,
    CLASS = 7,
    CLIENT = 8,
    PARENT = 9,
    OBJECT = 10,
    ASKED = 11,
    GRANTED = 12,
    ATTR_IN = 13,
    ATTR_OUT = 14,
    ATTR2 = 15,
    FLAGS = 16,
    STATUS = 17,
    EXTRA = 18,
    TIMES = 19,
    STEP = 20,
    COLUMNS = 21,
};

/* A row of the log. */
struct row {
    char text[1024];
    char *columns[COLUMNS];
};

static struct {
    FILE *log;
    char process;
    uint64_t row, requests;
    replay_layout *layout;
    replay_send *send;
} replay;

static bool read_row(struct row *row)
{
    if (!fgets(row->text, sizeof row->text, replay.log))
        return false;
    replay.row++;
    row->text[strcspn(row->text, "\n")] = '\0';
    char *rest = row->text;
    for (int column = 0; column < COLUMNS; column++) {
        char *field = strsep(&rest, "\t");
        row->columns[column] = field ? field : "";
    }
    return true;
}

static uint32_t hexadecimal(const struct row *row, enum column column)
{
    return (uint32_t)strtoul(row->columns[column], NULL, 16);
}

static uint64_t decimal(const struct row *row, enum column column)
{
    return strtoull(row->columns[column], NULL, 10);
}

static bool is(const struct row *row, enum column column, const char *word)
{
    return strcmp(row->columns[column], word) == 0;
}

static struct device_answer answer_of(const struct row *row, uint32_t object)
{
    return (struct device_answer){
        .object = object, .status = hexadecimal(row, STATUS), .attr = hexadecimal(row, ATTR_OUT),
        .bytes = decimal(row, GRANTED)};
}

static void put_objects(uint8_t *argument, const struct row *row, uint32_t object)
{
    put32(argument, RM_AT_CLIENT, is(row, CLASS, "41") ? 0 : hexadecimal(row, CLIENT));
    put32(argument, RM_AT_PARENT, hexadecimal(row, PARENT));
    put32(argument, RM_AT_OBJECT, object);
    put32(argument, RM_AT_CLASS, hexadecimal(row, CLASS));
}

/* Whether the answer is the same as in the log. */
static bool is_answered(const struct row *row, bool answered, const uint8_t *argument, size_t status_at)
{
    return answered && get32(argument, status_at) == hexadecimal(row, STATUS);
}

static bool allocate(const struct row *row, uint32_t object)
{
    uint8_t argument[RM_ALLOC_MOST_BYTES] = {0};
    uint8_t parameters[MEMORY_PARAMETERS_BYTES] = {0};
    const struct rm_layout *layout = replay.layout();
    put_objects(argument, row, is(row, CLASS, "41") ? 0 : object);
    put_pointer(argument, ALLOC_AT_PARAMETERS, parameters);
    if (hexadecimal(row, CLASS) == CLASS_DEVICE)
        sscanf(row->columns[EXTRA], "device=%u", (unsigned *)parameters);
    if (!is(row, ASKED, "-")) {
        put32(parameters, MEMORY_AT_FLAGS, hexadecimal(row, FLAGS));
        put32(parameters, MEMORY_AT_ATTR, hexadecimal(row, ATTR_IN));
        put32(parameters, MEMORY_AT_ATTR2, hexadecimal(row, ATTR2));
        put64(parameters, MEMORY_AT_SIZE, decimal(row, ASKED));
    }
    struct device_answer answer = answer_of(row, object);
    bool answered = replay.send(DEVICE_CONTROL, RM_ALLOC, argument, layout->alloc_bytes, &answer);
    return is_answered(row, answered, argument, layout->alloc_at_status);
}

static bool pin(const struct row *row, uint32_t object)
{
    uint8_t argument[RM_ALLOC_MEMORY_BYTES] = {0};
    put_objects(argument, row, object);
    put32(argument, ALLOC_MEMORY_AT_FLAGS, hexadecimal(row, FLAGS));
    put64(argument, ALLOC_MEMORY_AT_LIMIT, decimal(row, ASKED) - 1);
    struct device_answer answer = answer_of(row, object);
    bool answered = replay.send(DEVICE_GPU, RM_ALLOC_MEMORY, argument, sizeof argument, &answer);
    return is_answered(row, answered, argument, ALLOC_MEMORY_AT_STATUS);
}

static bool release(const struct row *row, uint32_t object)
{
    uint8_t argument[RM_FREE_BYTES] = {0};
    put_objects(argument, row, object);
    put32(argument, FREE_AT_STATUS, 0);
    bool answered = replay.send(DEVICE_CONTROL, RM_FREE, argument, sizeof argument, NULL);
    return is_answered(row, answered, argument, FREE_AT_STATUS);
}

static bool duplicate(const struct row *row, uint32_t object)
{
    uint8_t argument[RM_DUP_BYTES] = {0};
    unsigned client = 0, source = 0;
    sscanf(row->columns[EXTRA], "from=%x:%x", &client, &source);
    put_objects(argument, row, object);
    put32(argument, DUP_AT_SOURCE_CLIENT, client);
    put32(argument, DUP_AT_SOURCE_OBJECT, source);
    bool answered = replay.send(DEVICE_CONTROL, RM_DUP, argument, sizeof argument, NULL);
    return is_answered(row, answered, argument, DUP_AT_STATUS);
}

static bool control(const struct row *row, uint32_t object)
{
    uint8_t argument[RM_CONTROL_BYTES] = {0};
    uint8_t parameters[GID_PARAMETERS_BYTES] = {0};
    uint32_t command = hexadecimal(row, CLASS);
    if (command == CONTROL_GID_INFO)
        put32(parameters, GID_AT_FLAGS, GID_FLAG_BINARY);
    if (command == CONTROL_ID_INFO)
        put32(parameters, ID_AT_GPU, device_gpu_id(0));
    put32(argument, RM_AT_CLIENT, hexadecimal(row, CLIENT));
    put32(argument, CONTROL_AT_OBJECT, object);
    put32(argument, CONTROL_AT_COMMAND, command);
    put_pointer(argument, CONTROL_AT_PARAMETERS, parameters);
    put32(argument, CONTROL_AT_PARAMETERS_BYTES, sizeof parameters);
    bool answered = replay.send(DEVICE_CONTROL, RM_CONTROL, argument, sizeof argument, NULL);
    return is_answered(row, answered, argument, CONTROL_AT_STATUS);
}

static bool address(const struct row *row, uint32_t object)
{
    static uint8_t argument[UVM_MAP_MOST_BYTES];
    memset(argument, 0, sizeof argument);
    uint32_t number = (uint32_t)strtoul(row->columns[REQUEST] + 1, NULL, 10);
    unsigned long base = 0, length = 0;
    sscanf(row->columns[EXTRA], "va=%lx len=%lu", &base, &length);
    put64(argument, UVM_AT_BASE, base);
    put64(argument, UVM_AT_LENGTH, length);
    if (number == UVM_MAP_EXTERNAL) {
        put32(argument, replay.layout()->map_at_client, hexadecimal(row, CLIENT));
        put32(argument, replay.layout()->map_at_client + 4, object);
    }
    return replay.send(DEVICE_UVM, number, argument, 0, NULL);
}

static const struct {
    const char *request; /* start of the column */
    bool (*make)(const struct row *, uint32_t object);
} requests[] = {
    {"2b/", allocate}, {"27/", pin}, {"29/", release}, {"34/", duplicate}, {"2a/", control}, {"u", address},
};

/* A row may represent several equal requests, whose handles differ by its step. */
static bool repeat(const struct row *row, bool (*make)(const struct row *, uint32_t))
{
    uint64_t times = decimal(row, TIMES);
    for (uint64_t time = 0; time < times; time++) {
        replay.requests++;
        if (!make(row, hexadecimal(row, OBJECT) + (uint32_t)(time * decimal(row, STEP))))
            return false;
    }
    return true;
}

static bool run_row(const struct row *row)
{
    for (size_t index = 0; index < sizeof requests / sizeof *requests; index++)
        if (strncmp(row->columns[REQUEST], requests[index].request, strlen(requests[index].request)) == 0)
            return repeat(row, requests[index].make);
    return true;
}

/* replay FILE [PROCESS]: opens the log without making a request */
static void run_replay(struct call *call)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    replay_open *open = (replay_open *)dlsym(library, "gpusim_replay_open");
    replay.layout = (replay_layout *)dlsym(library, "gpusim_replay_layout");
    replay.send = (replay_send *)dlsym(library, "gpusim_replay_send");
    replay.log = fopen(call_word(call, 1), "re");
    replay.process = call->count > 2 ? *call_word(call, 2) : 'A';
    replay.row = replay.requests = 0;
    if (!replay.log || !open || !replay.layout || !replay.send)
        call_fail(call, "no such log, or no simulated driver");
    else
        call_result(call, open());
}

/* mark: makes the requests up to the next mark, and replies with what NVML reported there; `end` after the last */
static void run_mark(struct call *call)
{
    struct row row;
    while (replay.log && read_row(&row)) {
        if (is(&row, EVENT, "MARK")) {
            call_reply_text(call, "mark", row.columns[NAME]);
            call_reply_number(call, "used_bytes", decimal(&row, GRANTED));
            call_reply_number(call, "requests", replay.requests);
            call_result(call, CUDA_SUCCESS);
            return;
        }
        if (*row.columns[PROCESS] == replay.process && !run_row(&row)) {
            char text[64];
            snprintf(text, sizeof text, "row %lu of the log is answered otherwise", (unsigned long)replay.row);
            call_fail(call, text);
            return;
        }
    }
    call_reply_json(call, "end", "true");
    call_result(call, CUDA_SUCCESS);
}

const struct command replay_commands[] = {
    {"replay", 2, run_replay},
    {"mark", 1, run_mark},
    {0},
};
