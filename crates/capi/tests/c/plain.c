/* Plain stores after blocks that wrote to the same words. Flushed stores survive a crash, and all
 * survive an orderly end. */
#include "check.h"
#include <selvedge/short.h>
#include <signal.h>
#include <unistd.h>

static pstatic long flushed, through, other, kept;
static pstatic void *block;
static long *root;

static void begin(long value)
{
    patomic {
        flushed = through = other = kept = value;
        root[0] = root[1] = value;
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    root = selvedge_root("plain", 2 * sizeof *root);
    CHECK(root != NULL);
    if (!strcmp(argv[1], "check")) {
        CHECK(flushed == 2 && through == 3 && root[0] == 4 && other == 1 && root[1] == 1);
        return 0;
    }
    if (!strcmp(argv[1], "kept")) {
        CHECK(kept == 5 && block == NULL);
        return 0;
    }
    begin(1);
    CHECK(pmalloc(100, &block) != NULL);
    if (!strcmp(argv[1], "exit")) {
        kept = 5;
        block = NULL;
        return 0;
    }
    store(&flushed, 2);
    flush(&flushed);
    CHECK(fence() == 0);
    wtstore(&through, 3);
    store(&root[0], 4);
    flush(&root[0]);
    CHECK(fence() == 0);
    return kill(getpid(), SIGKILL);
}
