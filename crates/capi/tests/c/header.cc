/* The header, on its own and first. */
#include <selvedge.h>

static SELVEDGE_STATIC long number;

#ifndef SELVEDGE_NO_SHORT_NAMES
static pstatic long other;
static long persistent *pointer;
#else
/* Names that a program may have for itself. */
static int store, flush, fence, pmap;
#define patomic SELVEDGE_ATOMIC
#endif

int main(void)
{
    SELVEDGE_ATOMIC { number += 1; }
#ifndef SELVEDGE_NO_SHORT_NAMES
    patomic { pointer = &number, other = 1; }
    store(&number, 2);
    wtstore(&number, 3);
    flush(&number);
    if (fence() != 0 || pointer != &number || number != 3)
        return 1;
#else
    patomic { number += store + flush + fence + pmap; }
#endif
    return number == 0;
}
