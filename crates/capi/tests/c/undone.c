/* The cancel of an inner transaction restores blocks of the outer one. "write VALUE" is killed after
 * the transaction; "check VALUE" checks the blocks. */
#include "check.h"
#include <selvedge/short.h>
#include <signal.h>
#include <stdlib.h>

enum { BLOCKS = 64, SHORT = 200, LONG = 1500 };

struct state {
    unsigned char *blocks[BLOCKS];
};

/* Streaming stores fill some of the blocks. */
static size_t size_of(int n) { return n % 2 ? SHORT : LONG; }

SELVEDGE_SAFE __attribute__((noinline)) static void fill(unsigned char *block, size_t size, int value)
{
    memset(block, value, size);
}

static void check(const struct state *state, int value)
{
    for (int n = 0; n < BLOCKS; n++)
        for (size_t at = 0; at < size_of(n); at++)
            CHECK(state->blocks[n][at] == value);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    struct state *state = selvedge_root("state", sizeof *state);
    int value = atoi(argv[2]);
    CHECK(state != NULL);
    if (!strcmp(argv[1], "check")) {
        check(state, value);
        return 0;
    }
    patomic {
        for (int n = 0; n < BLOCKS; n++) {
            pfree(&state->blocks[n]);
            fill(pmalloc(size_of(n), &state->blocks[n]), size_of(n), value);
        }
        patomic {
            for (int n = 0; n < BLOCKS; n++)
                fill(state->blocks[n], size_of(n), 0);
            __transaction_cancel;
        }
    }
    check(state, value);
    raise(SIGKILL);
    return 1;
}
