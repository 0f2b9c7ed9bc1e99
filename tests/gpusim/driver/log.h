/* What the simulator says about itself, for a person who debugs a test. */
#ifndef GPUSIM_LOG_H
#define GPUSIM_LOG_H

enum log_level {
    LOG_ALWAYS = 0,      /* the simulator cannot do its work */
    LOG_UNSUPPORTED = 1, /* a call that has no implementation */
    LOG_CALLS = 2,       /* allocation calls */
    LOG_EVERYTHING = 3,  /* launches and symbol look-ups too */
};

/* Writes one line when GPUSIM_LOG is at least `level`; to GPUSIM_LOG_FILE, or to standard error. */
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
