/* The part that has blocks. */
#include <selvedge.h>

void increment(long *number)
{
    patomic { *number += 1; }
}
