/* The part that has blocks. */
#include <selvedge/short.h>

void increment(long *number)
{
    patomic { *number += 1; }
}
