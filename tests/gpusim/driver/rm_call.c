/* Compiled once per variant of the library: the default, one without a stub (-fno-plt), and one with two (GPUSIM_TWO_STUBS). */
#include "rm_call.h"

#include <sys/ioctl.h>

#ifdef GPUSIM_TWO_STUBS
extern int earlier_ioctl(int file, unsigned long request, ...);
__asm__(".symver earlier_ioctl, ioctl@GPUSIM_0");

bool rm_call(int file, unsigned long request, void *argument)
{
    static unsigned calls;
    return (calls++ % 2 ? earlier_ioctl(file, request, argument) : ioctl(file, request, argument)) == 0;
}
#else
bool rm_call(int file, unsigned long request, void *argument)
{
    return ioctl(file, request, argument) == 0;
}
#endif
