/* The part of the program with atomic blocks. */
#include <selvedge/short.h>

void increment(long *number)
{
    patomic { *number += 1; }
}
