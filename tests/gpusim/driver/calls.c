/* Writes the names of the exported functions that this process has called to the file GPUSIM_CALLS at exit. */
#include <stdio.h>
#include <stdlib.h>

#include "proc_table.h"

/* Counted by the exported trampolines (build), in the order of gpusim_symbols. Concurrent increments may be lost. */
extern unsigned gpusim_calls[] __attribute__((visibility("hidden")));

static void __attribute__((destructor)) write_calls(void)
{
    const char *path = getenv("GPUSIM_CALLS");
    FILE *file = path ? fopen(path, "ae") : NULL;
    if (!file)
        return;
    for (size_t index = 0; gpusim_symbols[index]; index++)
        if (gpusim_calls[index])
            fprintf(file, "%s\n", gpusim_symbols[index]);
    fclose(file);
}
