/* Wrong uses of the library, one for each argument. */
#include "check.h"
#include <errno.h>
#include <selvedge/short.h>
#include <selvedge/structures.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static long *durable, ordinary;

SELVEDGE_SAFE static void safe(void) { ordinary += 1; }

/* A function without a transactional clone, called through a pointer. */
static void unsafe(void) { ordinary += 1; }
static void (*volatile by_pointer)(void) = unsafe;
SELVEDGE_SAFE static void (*safe_pointer)(void);

static void wait_for_input(void)
{
    char byte;
    CHECK(write(1, "\n", 1) == 1);
    CHECK(read(0, &byte, 1) >= 0);
}

static void too_long(void)
{
    long *large = selvedge_root("large", 8 << 20);
    CHECK(large != NULL);
    patomic {
        for (int n = 0; n < 1 << 20; n++)
            large[n] = n;
    }
}

static void in_child(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        patomic { *durable += 1; }
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    patomic { *durable += 1; }
    exit(3);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    const char *what = argv[1];
    if (!strcmp(what, "start")) {
        CHECK(selvedge_start() == -1);
        printf("%s", selvedge_message());
        return 0;
    }
    if (!strcmp(what, "root")) {
        CHECK(selvedge_root("nowhere", 0) == NULL && errno == EIO);
        printf("%s", selvedge_message());
        CHECK(selvedge_tree_root("nowhere") == NULL && errno == EIO);
        return 0;
    }
    durable = selvedge_root("wrong", sizeof *durable);
    CHECK(durable != NULL);
    if (!strcmp(what, "wait")) {
        wait_for_input();
    } else if (!strcmp(what, "irrevocable")) {
        if (argc > 10)
            by_pointer = NULL;
        __transaction_relaxed {
            *durable += 1;
            if (*durable)
                by_pointer();
        }
    } else if (!strcmp(what, "relaxed")) {
        __transaction_relaxed { printf("%ld", *durable); }
    } else if (!strcmp(what, "pointer")) {
        safe_pointer = argc > 10 ? safe : (__typeof__(safe_pointer))unsafe;
        patomic { safe_pointer(); }
    } else if (!strcmp(what, "system")) {
        long *system = (long *)((uintptr_t)durable & ~((1ul << 44) - 1));
        patomic { system[100] = 1; }
    } else if (!strcmp(what, "nowhere")) {
        long *nowhere = durable + (1ul << 34);
        patomic { *nowhere = 1; }
    } else if (!strcmp(what, "free")) {
        patomic { free(durable); }
    } else if (!strcmp(what, "long")) {
        too_long();
    } else if (!strcmp(what, "structure")) {
        /* Outside of a block the call fails. Inside of one, half of it may be done: the process ends. */
        selvedge_tree *tree = pmalloc_set(100, NULL, 0x55);
        CHECK(selvedge_tree_put(tree, "key", 3, NULL, 0) == -1 && errno == EIO);
        patomic { selvedge_tree_put(tree, "key", 3, NULL, 0); }
    } else if (!strcmp(what, "wild")) {
        /* The same for a pointer past the end of durable memory. */
        unsigned long *words = pcalloc(4, sizeof *words, NULL);
        selvedge_tree *tree = (selvedge_tree *)words;
        patomic { words[0] = 0x5050505050505050; }
        CHECK(selvedge_tree_get(tree, "key", 3, NULL, 0) == -1 && errno == EIO);
        patomic { selvedge_tree_get(tree, "key", 3, NULL, 0); }
    } else if (!strcmp(what, "fork")) {
        in_child();
    }
    return 0;
}
