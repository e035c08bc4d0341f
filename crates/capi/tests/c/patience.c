/* A block with permanent conflicts commits in the end. A block that reads for long does not delay
 * commits to other words. */
#include "check.h"
#include <pthread.h>
#include <selvedge/short.h>
#include <unistd.h>

enum { WORDS = 4096 };

static long *words;
static long count;
static int done, is_inside, may_leave;

SELVEDGE_PURE static void wait_a_little(int *attempts)
{
    CHECK(++*attempts < 100);
    usleep(1000);
}

static void *keep_writing(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&done, __ATOMIC_SEQ_CST)) {
        patomic {
            words[0] += 1;
            words[WORDS - 1] += 1;
        }
    }
    return NULL;
}

static void lose_often(void)
{
    pthread_t writer;
    long first, last;
    int attempts = 0;
    CHECK(pthread_create(&writer, NULL, keep_writing, NULL) == 0);
    patomic {
        first = words[0];
        wait_a_little(&attempts);
        last = words[WORDS - 1];
    }
    CHECK(first == last);
    __atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
    CHECK(pthread_join(writer, NULL) == 0);
}

SELVEDGE_PURE static void stay(void)
{
    __atomic_store_n(&is_inside, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&may_leave, __ATOMIC_SEQ_CST))
        usleep(100);
}

static void *read_for_long(void *unused)
{
    (void)unused;
    patomic {
        long sum = 0;
        for (int n = 0; n < WORDS / 2; n++)
            sum += words[n];
        stay();
        count = sum;
    }
    return NULL;
}

/* If these commits waited for the reader, this thread would never let it leave. */
static void change_something_else(void)
{
    pthread_t reader;
    CHECK(pthread_create(&reader, NULL, read_for_long, NULL) == 0);
    while (!__atomic_load_n(&is_inside, __ATOMIC_SEQ_CST))
        usleep(100);
    for (int n = WORDS / 2; n < WORDS; n++) {
        patomic {
            words[n] += 1;
        }
    }
    __atomic_store_n(&may_leave, 1, __ATOMIC_SEQ_CST);
    CHECK(pthread_join(reader, NULL) == 0);
    CHECK(count == words[0]);
}

int main(void)
{
    words = selvedge_root("words", WORDS * sizeof *words);
    CHECK(words != NULL);
    lose_often();
    change_something_else();
    return 0;
}
