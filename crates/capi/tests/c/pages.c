/* Data several times as large as the pool: a list, an array with plain stores, and system calls
 * that read and write it. The first run makes them; later runs find and change them. */
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <selvedge/short.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (8 << 20)
#define WORDS (BYTES / (long)sizeof(long))
#define NODES 500
#define THREADS 3

struct node {
    struct node *next;
    long number;
    char rest[8000];
};

static pstatic struct node *list;
static pstatic long *array;
static pstatic long runs;

/* Each thread has its own words of each page. */
static void *change(void *first)
{
    for (long n = (long)first; n < WORDS; n += 512) {
        CHECK(array[n] == (runs ? n * runs : 0));
        store(&array[n], n * (runs + 1));
        flush(&array[n]);
        if (n % 16 == 0)
            CHECK(fence() == 0);
    }
    CHECK(fence() == 0);
    return NULL;
}

static void check_calls(void)
{
    int fds[2];
    CHECK(pipe(fds) == 0);
    for (long n = 0; n < WORDS; n += 8192 + 1) {
        long was = array[n];
        CHECK(write(fds[1], &array[n], sizeof was) == sizeof was);
        CHECK(read(fds[0], &array[WORDS - 1 - n], sizeof was) == sizeof was);
        CHECK(array[WORDS - 1 - n] == was);
    }
    memset(array, 0, BYTES);
    CHECK(read(open("/dev/zero", O_RDONLY), array, BYTES) == BYTES);
    /* A child has none of this memory. */
    long *first = array;
    pid_t child = fork();
    if (child == 0)
        _exit(write(fds[1], first, 1) != -1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "locked"))
        CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    if (!array)
        CHECK(pmap(&array, BYTES, PROT_READ | PROT_WRITE, 0));
    for (long n = 0; n < NODES && !runs; n++)
        patomic {
            struct node *node = pmalloc(sizeof *node, NULL);
            node->next = list;
            node->number = n;
            list = node;
        }
    long count = 0;
    for (struct node *node = list; node; node = node->next)
        CHECK(node->number == (NODES - ++count) + 1000 * runs);
    CHECK(count == NODES);
    for (struct node *node = list; node; node = node->next)
        patomic { node->number += 1000; }
    pthread_t threads[THREADS];
    for (long n = 0; n < THREADS; n++)
        CHECK(pthread_create(&threads[n], NULL, change, (void *)(n * 100)) == 0);
    for (long n = 0; n < THREADS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    patomic { runs++; }
    if (argc > 1 && !strcmp(argv[1], "calls"))
        check_calls();
    printf("%ld\n", runs);
    return 0;
}
