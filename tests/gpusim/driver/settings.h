/* Environment variables that configure the simulated machine; README.md lists them. */
#ifndef GPUSIM_SETTINGS_H
#define GPUSIM_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#define KIBIBYTE 1024ull
#define MEBIBYTE (1024ull * 1024ull)

/* The number in the environment variable `name`, or `otherwise` if it is unset or not a number. */
uint64_t settings_number(const char *name, uint64_t otherwise);

/* Whether the environment variable `name` is set to exactly `value`. */
bool settings_is(const char *name, const char *value);

#endif
