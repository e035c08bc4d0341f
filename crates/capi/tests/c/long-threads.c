/* Threads whose blocks write more than a log holds, until the program is killed. Each writes to an
 * array of its own, and sometimes to a shared one. Heap blocks are allocated and freed meanwhile, in
 * the place of earlier overflow records. The next run compares the arrays. */
#include "check.h"
#include <pthread.h>
#include <selvedge/short.h>
#include <unistd.h>

enum { THREADS = 3, WORDS = 12000, SHARED = 9000, BLOCK = 70000 };

struct state {
    unsigned long steps[THREADS];
    /* The thread that stored last to the shared array, and its step. */
    unsigned long thread, step;
    unsigned long own[THREADS][WORDS];
    unsigned long shared[SHARED];
    unsigned char *blocks[THREADS];
};

static struct state *state;

static unsigned long value(unsigned long thread, unsigned long step, unsigned long word)
{
    return (step * THREADS + thread) * 0x9e3779b97f4a7c15 + word;
}

static void take(unsigned long thread, unsigned long step)
{
    unsigned long first = value(thread, step, 0);
    int shares = step % 3 == 0, allocates = step % 2;
    patomic {
        unsigned long *own = state->own[thread];
        for (unsigned long n = 0; n < WORDS; n++)
            own[n] = first + n;
        if (shares) {
            for (unsigned long n = 0; n < SHARED; n++)
                state->shared[n] = first + n;
            state->thread = thread;
            state->step = step;
        }
        pfree(&state->blocks[thread]);
        if (allocates)
            pmalloc_set(BLOCK, &state->blocks[thread], (int)(step & 0xff));
        state->steps[thread] = step;
    }
}

static unsigned long check(void)
{
    unsigned long all = 0;
    for (unsigned long thread = 0; thread < THREADS; thread++) {
        unsigned long step = state->steps[thread];
        all += step;
        for (unsigned long n = 0; step && n < WORDS; n++)
            CHECK(state->own[thread][n] == value(thread, step, n));
        CHECK((step % 2 != 0) == (state->blocks[thread] != NULL));
        for (unsigned long n = 0; step % 2 && n < BLOCK; n++)
            CHECK(state->blocks[thread][n] == (step & 0xff));
    }
    CHECK(state->step <= state->steps[state->thread]);
    CHECK(state->step + 3 > state->steps[state->thread]);
    for (unsigned long n = 0; state->step && n < SHARED; n++)
        CHECK(state->shared[n] == value(state->thread, state->step, n));
    return all;
}

static void *work(void *argument)
{
    unsigned long thread = (unsigned long)argument;
    for (unsigned long step = state->steps[thread] + 1;; step++) {
        take(thread, step);
        if (thread == 0)
            CHECK(write(1, "\n", 1) == 1);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    state = selvedge_root("state", sizeof *state);
    CHECK(state != NULL);
    printf("%lu\n", check());
    fflush(stdout);
    if (argc > 1 && !strcmp(argv[1], "check"))
        return 0;
    pthread_t threads[THREADS];
    for (unsigned long n = 0; n < THREADS; n++)
        CHECK(!pthread_create(&threads[n], NULL, work, (void *)n));
    pthread_join(threads[0], NULL);
    return 0;
}
