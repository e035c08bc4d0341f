/* After selvedge_try, a block that fails is undone and returns an error. */
#include "check.h"
#include <errno.h>
#include <selvedge/short.h>
#include <stdlib.h>

#define WORDS (1 << 20)

static long *large, ordinary;
static int undone;
static void *leaked;

static void fill(long with)
{
    patomic {
        ordinary += 1;
        for (int n = 0; n < WORDS; n++)
            large[n] = with;
    }
}

/* Returns errno, or 0. */
static int try_to(void (*what)(long), long argument)
{
    if (selvedge_try() == 0) {
        what(argument);
        selvedge_try_end();
        return 0;
    }
    undone++;
    CHECK(selvedge_message()[0] != 0 && !selvedge_in_transaction());
    return errno;
}

static void touch(long words)
{
    patomic {
        large[0] = 77;
        ordinary = 77;
        leaked = malloc(100);
        large[words] = 1;
    }
}

static void again(long with)
{
    CHECK(try_to(fill, with) == ENOMEM);
    patomic { large[1] = with; }
    touch(WORDS + WORDS / 4);
}

/* Leaves without selvedge_try_end a frame that ends below that of the next block. */
__attribute__((noinline)) static int leave(void)
{
    volatile char low[4096];
    low[0] = 1;
    if (selvedge_try() == 0)
        return low[0];
    fprintf(stderr, "returned to a frame that is gone\n");
    exit(1);
}

static void touch_after_leaving(long words)
{
    CHECK(leave());
    touch(words);
}

int main(void)
{
    /* The heap has no room for the part of the record that the log cannot hold. */
    setenv("SELVEDGE_BYTES", "33554432", 1);
    large = selvedge_root("large", WORDS * sizeof *large);
    CHECK(large != NULL);
    patomic { large[0] = 1; }
    CHECK(try_to(fill, 5) == ENOMEM && large[0] == 1 && large[WORDS - 1] == 0 && ordinary == 0);
    CHECK(strstr(selvedge_message(), "writes more than a log holds"));
    CHECK(try_to(touch, WORDS + WORDS / 4) == EIO && large[0] == 1 && ordinary == 0);
    CHECK(strstr(selvedge_message(), "not in a region of the program"));
    CHECK(try_to(touch, 2) == 0 && large[0] == 77 && large[2] == 1 && ordinary == 77);
    /* One inside another. */
    CHECK(try_to(again, 9) == EIO && large[1] == 9 && large[0] == 77);
    CHECK(undone == 4);
    CHECK(try_to(touch_after_leaving, WORDS + WORDS / 4) == EIO && undone == 5);
    free(leaked);
    patomic { large[0] = large[1] = large[2] = 0; }
    return 0;
}
