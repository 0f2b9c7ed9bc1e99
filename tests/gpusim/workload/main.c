/*
 * gpusim-workload: calls the CUDA driver as a script requests. Commands are read from standard input, one per line; each is
 * answered with one line of JSON. tests/gpusim/README.md lists them.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "driver.h"
#include "workers.h"

static const struct command *const tables[] = {
    context_commands, memory_commands, pool_commands, virtual_commands, graph_commands, process_commands,
    bulk_commands, generic_commands, life_commands, replay_commands,
};

static const struct command *find(const char *name)
{
    for (size_t table = 0; table < sizeof tables / sizeof *tables; table++)
        for (const struct command *command = tables[table]; command->name; command++)
            if (strcmp(command->name, name) == 0)
                return command;
    return NULL;
}

void command_run(struct call *call)
{
    const struct command *command = find(call_word(call, 0));
    if (!command)
        call_fail(call, "no such command");
    else if (call->count < command->words)
        call_fail(call, "too few words");
    else
        command->run(call);
}

/* Reads byte by byte: the rest of the input must stay in the pipe, because an exec continues reading it. */
static bool read_line(int input, char *line, size_t room)
{
    size_t length = 0;
    char character;
    while (read(input, &character, 1) == 1) {
        if (character == '\n') {
            line[length] = '\0';
            return true;
        }
        if (length + 1 < room)
            line[length++] = character;
    }
    return false;
}

void command_loop(int input, int output)
{
    char line[LONGEST_LINE];
    while (read_line(input, line, sizeof line)) {
        if (!line[0] || line[0] == '#')
            continue;
        char reply[LONGEST_REPLY];
        if (line[0] == '@') {
            worker_run(line + 1, reply, sizeof reply);
        } else {
            struct call call;
            call_parse(&call, line);
            command_run(&call);
            snprintf(reply, sizeof reply, "%s", call_finish(&call));
        }
        dprintf(output, "%s\n", reply);
    }
}

int main(void)
{
    if (!driver_load())
        return 1;
    command_loop(STDIN_FILENO, STDOUT_FILENO);
    return 0;
}
