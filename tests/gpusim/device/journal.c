#include "journal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* -1 before the first request, -2 if there is no journal. */
static int file = -1;

static int open_journal(void)
{
    const char *path = getenv("GPUSIM_RM_LOG");
    int opened = path && *path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -2;
    return opened < 0 ? -2 : opened;
}

void journal_add(const struct request *request)
{
    if (file == -1)
        file = open_journal();
    if (file < 0)
        return;
    char line[256];
    int length = snprintf(
        line, sizeof line, "%d\t%x\t%u\t%s\t%x\t%x\t%x\t%x\t%lu\t%lu\t%x\t%d\t%lx\t%lu\t%x\t%x\n", (int)getpid(), request->number,
        request->bytes, request->wrapped ? "wrapped" : "plain", request->class, request->client, request->parent,
        request->object, request->asked_bytes, request->granted_bytes, request->status, request->answer,
        request->address, request->length, request->source_client, request->source_object);
    if (write(file, line, (size_t)length) != length) {
        close(file);
        file = -2;
    }
}
