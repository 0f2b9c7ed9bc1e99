#include "log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static int wanted_level;
static FILE *destination;

static void open_log(void)
{
    const char *level = getenv("GPUSIM_LOG");
    const char *path = getenv("GPUSIM_LOG_FILE");
    wanted_level = level ? atoi(level) : LOG_ALWAYS;
    destination = path ? fopen(path, "ae") : stderr;
    if (!destination)
        destination = stderr;
    setvbuf(destination, NULL, _IOLBF, 0);
}

void log_line(enum log_level level, const char *format, ...)
{
    pthread_once(&opened, open_log);
    if ((int)level > wanted_level)
        return;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(destination, "[gpusim %d] %s\n", (int)getpid(), text);
}
