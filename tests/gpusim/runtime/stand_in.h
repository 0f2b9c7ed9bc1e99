/*
 * Shared by all stand-in libraries: they export their own functions and, for each function that PyTorch imports from the real
 * library but that has no source here, a generated entry that calls stand_in_missing().
 */
#ifndef GPUSIM_STAND_IN_H
#define GPUSIM_STAND_IN_H

/* The sources are compiled with -fvisibility=hidden: only the functions of the replaced library are exported. */
#define EXPORT __attribute__((visibility("default")))

/*
 * The result of a function without a source here, a status code of its library. Compute libraries return
 * success and do nothing, others return that the function is not supported. Both are logged.
 */
long stand_in_missing(const char *symbol);

enum log_level {
    LOG_ALWAYS = 0,      /* the stand-in cannot work */
    LOG_UNSUPPORTED = 1, /* a call that is refused */
    LOG_NO_OPERATION = 2 /* a call that succeeds and does nothing */
};

/* Writes one line to standard error when GPUSIM_LOG is at least `level`. */
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The number in the environment variable `name`, or `otherwise` when it is unset or not a number. */
long settings_number(const char *name, long otherwise);

#endif
