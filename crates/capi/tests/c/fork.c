/* Children made by fork: they have no durable memory, and leave their parent's alone. */
#include "check.h"
#include <fcntl.h>
#include <selvedge/short.h>
#include <sys/wait.h>
#include <unistd.h>

static pstatic long word = 1;
static long *block;
static volatile long *volatile nowhere;

/* Whether a child that does this is ended by abort(). */
static int is_ended(void (*does)(void))
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        does();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void stores_to_variable(void) { *(volatile long *)&word = 5; }
static void stores_to_block(void) { *(volatile long *)block = 5; }
static void reads(void) { _exit((int)*(volatile long *)block); }
static void begins(void) { patomic { word += 1; } }
static void faults(void) { *nowhere = 5; }

/* Whether the child of a child keeps the files that its parent has opened. */
static void has_files(void)
{
    int files[16], status;
    for (int n = 0; n < 16; n++)
        files[n] = dup(2);
    pid_t child = fork();
    if (child == 0) {
        for (int n = 0; n < 16; n++)
            CHECK(fcntl(files[n], F_GETFD) != -1);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0)
        abort();
}

int main(int argc, char **argv)
{
    block = selvedge_root("fork", sizeof *block);
    CHECK(block != NULL);
    if (argc > 1 && !strcmp(argv[1], "orphan")) {
        char byte;
        if (fork() == 0)
            CHECK(read(0, &byte, 1) >= 0);
        _exit(0);
    }
    CHECK(is_ended(stores_to_variable) && is_ended(stores_to_block));
    CHECK(is_ended(reads) && is_ended(begins));
    CHECK(!is_ended(faults)); /* the system ends it, by a signal */
    CHECK(!is_ended(has_files));
    CHECK(word == 1 && *block == 0);
    patomic { *block += word; }
    CHECK(system("exit 7") >> 8 == 7 && *block == 1);
    patomic { *block = 0; }
    return 0;
}
