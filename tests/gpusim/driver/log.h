/* Log of the simulator, for debugging tests. */
#ifndef GPUSIM_LOG_H
#define GPUSIM_LOG_H

enum log_level {
    LOG_ALWAYS = 0,      /* the simulator cannot work */
    LOG_UNSUPPORTED = 1, /* a call that has no implementation */
    LOG_CALLS = 2,       /* allocation calls */
    LOG_EVERYTHING = 3,  /* launches and symbol look-ups as well */
};

/* Writes one line when GPUSIM_LOG is at least `level`; to GPUSIM_LOG_FILE, or to standard error. */
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
