#include "stand_in.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

long settings_number(const char *name, long otherwise)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return otherwise;
    char *end;
    const long number = strtol(text, &end, 0);
    return *end ? otherwise : number;
}

void log_line(enum log_level level, const char *format, ...)
{
    if (settings_number("GPUSIM_LOG", LOG_ALWAYS) < (long)level)
        return;
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "[gpusim %d] %s\n", (int)getpid(), text);
}
