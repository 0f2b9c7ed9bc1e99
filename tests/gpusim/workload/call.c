#include "call.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_VARIABLES = 4096, LONGEST_NAME = 32 };

static struct {
    char name[LONGEST_NAME];
    uint64_t value;
} variables[MOST_VARIABLES];
static int variable_count;
static pthread_mutex_t variables_lock = PTHREAD_MUTEX_INITIALIZER;

static int variable_index(const char *name)
{
    int index = 0;
    while (index < variable_count && strcmp(variables[index].name, name) != 0)
        index++;
    return index;
}

void variable_set(const char *name, uint64_t value)
{
    pthread_mutex_lock(&variables_lock);
    int index = variable_index(name);
    if (index < MOST_VARIABLES) {
        snprintf(variables[index].name, LONGEST_NAME, "%s", name);
        variables[index].value = value;
        if (index == variable_count)
            variable_count++;
    }
    pthread_mutex_unlock(&variables_lock);
}

bool variable_get(const char *name, uint64_t *value)
{
    pthread_mutex_lock(&variables_lock);
    int index = variable_index(name);
    bool found = index < variable_count;
    if (found)
        *value = variables[index].value;
    pthread_mutex_unlock(&variables_lock);
    return found;
}

static void append(struct call *call, const char *format, const char *first, const char *second)
{
    size_t room = sizeof call->reply - call->length;
    int written = snprintf(call->reply + call->length, room, format, first, second);
    call->length += written < (int)room ? (size_t)written : room - 1;
}

void call_parse(struct call *call, const char *line)
{
    memset(call, 0, sizeof *call);
    snprintf(call->line, sizeof call->line, "%s", line);
    snprintf(call->text, sizeof call->text, "%s", line);
    char *rest = call->text;
    char *word;
    while (call->count < MOST_WORDS && (word = strtok_r(rest, " \t", &rest)))
        call->words[call->count++] = word;
    append(call, "{", "", "");
    call_reply_text(call, "command", call->line);
}

const char *call_word(const struct call *call, int index)
{
    return index < call->count ? call->words[index] : "";
}

bool call_is(const struct call *call, int index, const char *word)
{
    return strcmp(call_word(call, index), word) == 0;
}

static bool parse_term(const char *term, uint64_t *value)
{
    if (variable_get(term, value))
        return true;
    if (strcmp(term, "max") == 0) {
        *value = UINT64_MAX;
        return true;
    }
    char *unit;
    *value = strtoull(term, &unit, 0);
    if (unit == term)
        return false;
    switch (*unit) {
    case 'K': *value <<= 10; return !unit[1];
    case 'M': *value <<= 20; return !unit[1];
    case 'G': *value <<= 30; return !unit[1];
    default: return !*unit;
    }
}

uint64_t call_number(struct call *call, int index, uint64_t otherwise)
{
    if (index >= call->count)
        return otherwise;
    char terms[LONGEST_LINE];
    snprintf(terms, sizeof terms, "%s", call->words[index]);
    uint64_t sum = 0;
    char *rest = terms;
    char *term;
    while ((term = strtok_r(rest, "+", &rest))) {
        uint64_t value;
        if (!parse_term(term, &value)) {
            call_fail(call, "neither a number nor a variable");
            return 0;
        }
        sum += value;
    }
    return sum;
}

static void begin_field(struct call *call, const char *field)
{
    append(call, "%s\"%s\":", call->reply[call->length - 1] == '{' ? "" : ",", field);
}

void call_reply_json(struct call *call, const char *field, const char *json)
{
    begin_field(call, field);
    append(call, "%s%s", json, "");
}

void call_reply_number(struct call *call, const char *field, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    call_reply_json(call, field, text);
}

void call_reply_text(struct call *call, const char *field, const char *value)
{
    begin_field(call, field);
    append(call, "\"", "", "");
    for (; *value; value++) {
        char character[2] = {*value, 0};
        append(call, "%s%s", *value == '"' || *value == '\\' ? "\\" : "", character);
    }
    append(call, "\"", "", "");
}

void call_result(struct call *call, CUresult result)
{
    if (!call->failed)
        call_reply_number(call, "result", (uint64_t)result);
}

void call_result_variable(struct call *call, CUresult result, const char *name, uint64_t value)
{
    call_result(call, result);
    if (call->failed || result != CUDA_SUCCESS)
        return;
    variable_set(name, value);
    call_reply_number(call, name, value);
}

void call_fail(struct call *call, const char *reason)
{
    if (!call->failed)
        call_reply_text(call, "error", reason);
    call->failed = true;
}

const char *call_finish(struct call *call)
{
    append(call, "}", "", "");
    return call->reply;
}
