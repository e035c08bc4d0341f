/* Persistent variables of a program that is killed. Blocks write to some; plain stores, never
 * flushed, go to one far from them. Prints what it finds, then the number of each step. */
#include "check.h"
#include <selvedge/short.h>

struct far {
    char before[8192];
    long plain;
    char after[8192];
};

static pstatic long done, twice;
static pstatic struct far far;
static pstatic long *block;

int main(void)
{
    CHECK(twice == 2 * done && far.plain <= done + 1);
    CHECK(block ? block[0] == done : done == 0);
    printf("%ld %ld\n", done, far.plain);
    fflush(stdout);
    for (;;) {
        far.plain = done + 1;
        patomic {
            done += 1;
            twice += 2;
            pfree(&block);
            pmalloc(1000, &block);
            block[0] = done;
        }
        if (done % 100 == 0) {
            printf("%ld\n", done);
            fflush(stdout);
        }
    }
}
