/* A command: its line of input and its reply, a line of JSON. */
#ifndef WORKLOAD_CALL_H
#define WORKLOAD_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

enum { MOST_WORDS = 32, LONGEST_LINE = 4096, LONGEST_REPLY = 8192 };

struct call {
    char line[LONGEST_LINE];
    char text[LONGEST_LINE]; /* the line, split into words */
    char *words[MOST_WORDS];
    int count;
    char reply[LONGEST_REPLY]; /* an unfinished JSON object */
    size_t length;
    bool failed; /* the command is malformed: nothing was called */
};

void call_parse(struct call *call, const char *line);

/* The word at `index`, "" after the last one. */
const char *call_word(const struct call *call, int index);
bool call_is(const struct call *call, int index, const char *word);

/*
 * The number at `index`: a variable, a number (decimal or 0x, with K, M or G), `max`, or a sum of those written with `+`.
 * A missing word is `otherwise`; a word that is none of these fails the call.
 */
uint64_t call_number(struct call *call, int index, uint64_t otherwise);

/* Adds a field to the reply. */
void call_reply_number(struct call *call, const char *field, uint64_t value);
void call_reply_text(struct call *call, const char *field, const char *value);

/* Adds already formatted JSON to the reply. */
void call_reply_json(struct call *call, const char *field, const char *json);

/* Adds the result of a driver call; on success also sets the variable `name` and adds it to the reply. */
void call_result(struct call *call, CUresult result);
void call_result_variable(struct call *call, CUresult result, const char *name, uint64_t value);

/* Replies that the command is malformed. */
void call_fail(struct call *call, const char *reason);

/* Ends the reply; the returned line has no newline. */
const char *call_finish(struct call *call);

/* Named values, shared by the threads of the process. */
void variable_set(const char *name, uint64_t value);
bool variable_get(const char *name, uint64_t *value);

#endif
