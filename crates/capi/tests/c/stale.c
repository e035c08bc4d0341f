/* The address of a persistent variable must not get into durable memory. */
#include "check.h"
#include <selvedge/short.h>

static pstatic long variable;
/* Global, so that the compiler must store to them. */
pstatic long *pointer;
pstatic char *copy;
static long *ordinary;

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    /* Ordinary memory may hold the address. */
    patomic { ordinary = &variable; }
    CHECK(ordinary == &variable);
    if (!strcmp(argv[1], "stored")) {
        patomic { pointer = &variable; }
    } else if (!strcmp(argv[1], "copied")) {
        long *from[20] = {0};
        from[17] = &variable;
        patomic {
            pfree(&copy);
            pmalloc(sizeof from, &copy);
            memcpy(copy, from, sizeof from);
        }
    }
    return 0;
}
