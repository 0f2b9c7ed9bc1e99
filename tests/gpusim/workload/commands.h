/* The commands, by subject. Each table ends with an entry without a name. */
#ifndef WORKLOAD_COMMANDS_H
#define WORKLOAD_COMMANDS_H

#include "call.h"

struct command {
    const char *name;
    int words; /* minimum number of words, including the name */
    void (*run)(struct call *call);
};

extern const struct command context_commands[];
extern const struct command memory_commands[];
extern const struct command pool_commands[];
extern const struct command virtual_commands[];
extern const struct command graph_commands[];
extern const struct command process_commands[];
extern const struct command bulk_commands[];
extern const struct command generic_commands[];
extern const struct command life_commands[];
extern const struct command replay_commands[];

/* Runs one command on the calling thread and leaves its reply in `call`. */
void command_run(struct call *call);

/* Reads commands from `input` and writes replies to `output`, until the end of the input. */
void command_loop(int input, int output);

#endif
