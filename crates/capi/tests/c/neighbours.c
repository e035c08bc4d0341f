/* A block changes the bytes that it stores to: an int beside an int of another thread. */
#include "check.h"
#include <selvedge/short.h>
#include <unistd.h>

struct pair {
    int in_blocks, plain;
};

pstatic struct pair pair;
pstatic long far;

/* The stores of another thread while the block runs. */
SELVEDGE_PURE static void meanwhile(int value)
{
    __atomic_store_n(&pair.plain, value, __ATOMIC_RELAXED);
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) { /* after the end without the runtime's help: the block is replayed */
        CHECK(pair.in_blocks == 2 && far == 2);
        CHECK(pair.plain == 3);
        return 0;
    }
    for (int n = 1; n <= 2; n++) {
        patomic
        {
            pair.in_blocks = n;
            meanwhile(n);
            if (n == 2)
                far = n;
        }
        CHECK(pair.in_blocks == n && pair.plain == n);
    }
    pair.plain = 3;
    _exit(0);
}
