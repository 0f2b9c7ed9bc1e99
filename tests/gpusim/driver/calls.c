/* Which exported functions this process has called: written to the file GPUSIM_CALLS at its end. */
#include <stdio.h>
#include <stdlib.h>

#include "proc_table.h"

/* Counted by the exported trampolines (build), in the order of gpusim_symbols. Threads may overwrite each other's count. */
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
