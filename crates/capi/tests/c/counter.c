/* Counters that survive: by a named root, in static variables, in the heap. */
#include "check.h"
#include <selvedge/short.h>

pstatic long runs = 100;
static pstatic long *block;
static long ordinary;

int main(void)
{
    long *counter = selvedge_root("counter", sizeof *counter);
    CHECK(counter != NULL);
    if (block == NULL)
        CHECK(pmalloc_set(sizeof *block, &block, 0) == block);
    patomic {
        *counter += 1;
        runs += 1;
        *block += 2;
        ordinary += 3;
    }
    CHECK(ordinary == 3);
    CHECK(selvedge_is_persistent(block) && selvedge_is_persistent(&runs));
    CHECK(!selvedge_is_persistent(&ordinary));
    printf("%ld %ld %ld\n", *counter, runs - 100, *block / 2);
    return 0;
}
