#include "settings.h"

#include <stdlib.h>
#include <string.h>

uint64_t settings_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return otherwise;
    char *end;
    uint64_t number = strtoull(text, &end, 0);
    return *end ? otherwise : number;
}

bool settings_is(const char *name, const char *value)
{
    const char *text = getenv(name);
    return text && strcmp(text, value) == 0;
}
