/* Blocks that are left by longjmp, which is an error. Each argument is a way to detect it at run
 * time. With DIRECT the compiler detects it. */
#include "check.h"
#include <selvedge/short.h>
#include <setjmp.h>
#include <stdlib.h>

static jmp_buf place;
static long *durable;

#ifdef DIRECT
static void leave(void)
{
    patomic {
        *durable += 1;
        longjmp(place, 1);
    }
}
#else
/* Declared transaction_pure, which the compiler does not check. */
SELVEDGE_PURE __attribute__((noinline)) static void jump(void) { longjmp(place, 1); }

__attribute__((noinline)) static void leave(void)
{
    patomic {
        *durable += 1;
        jump();
    }
}
#endif

/* From a frame that ends below those of other blocks. */
__attribute__((noinline)) static void leave_below(void)
{
    volatile char room[4096];
    room[0] = 1;
    leave();
    CHECK(room[0] == 1);
}

__attribute__((noinline)) static void block(void)
{
    patomic { *durable += 1; }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    durable = selvedge_root("jumps", sizeof *durable);
    CHECK(durable != NULL && *durable == 0);
    int again = !strcmp(argv[1], "again"), tries = !strcmp(argv[1], "try");
    if (!strcmp(argv[1], "check"))
        return 0;
    /* Leaves the block twice if the same block begins again. */
    for (volatile int n = 0; n <= again; n++)
        if (setjmp(place) == 0)
            (again ? leave : leave_below)();
    CHECK(selvedge_in_transaction());
    if (tries)
        selvedge_try();
    else
        block();
    return 0;
}
