/*
 * The work that `selvedge bench memory` gives other stores; each program beside this includes it,
 * and gives it one store.
 *
 *     PROGRAM DIRECTORY VALUE_BYTES THREADS LIVE OPERATIONS durable|relaxed
 *
 * Each thread, on a CPU of its own as far as there are, first inserts LIVE entries, which is
 * not timed. Then OPERATIONS times it inserts an entry and deletes its oldest one, and each
 * call is timed by itself, with two readings of CLOCK_MONOTONIC. Prints one line of JSON:
 * of `insert`, `delete` and `update` (both) the median in microseconds, and how many all
 * threads together do in a second.
 *
 * A store that fails ends the program with a message. The result is checked in the
 * end: the newest entry is there, and what was deleted is not.
 */
#ifndef DRIVER_H
#define DRIVER_H

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct options {
    const char *directory;
    size_t value_bytes;
    unsigned threads;
    uint64_t live;
    uint64_t operations;
    /* Whether a call returns only after fsync, or after whatever the store has for it. */
    int durable;
};

/* The store, and one thread's way to use it: what each program defines. */
static void *store_open(const struct options *options);
static void store_close(void *store);
static void *session_open(void *store);
static void session_close(void *session);
static void session_insert(void *session, uint64_t key, const void *value, size_t bytes);
static void session_delete(void *session, uint64_t key);
static int session_has(void *session, uint64_t key);

__attribute__((noreturn, format(printf, 1, 2)))
static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

/* A path in the directory. */
static inline void path_in(const struct options *options, const char *name, char path[4096])
{
    int length = snprintf(path, 4096, "%s/%s", options->directory, name);
    if (length < 0 || length >= 4096)
        fail("the directory's name is too long");
}

/* The key of a thread's n-th entry: all different, in no order (splitmix64's last step). */
static inline uint64_t key_of(unsigned thread, uint64_t n)
{
    uint64_t z = ((uint64_t)thread << 40) + n;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* One thread: its input and its results. */
struct worker {
    const struct options *options;
    void *store;
    pthread_barrier_t *start;
    unsigned number;
    /* Nanoseconds of each call: inserts, then deletes. */
    uint64_t *samples;
    uint64_t from, to;
};

static void pin(unsigned number)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    unsigned skip = number % (unsigned)CPU_COUNT(&all);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &all) && skip-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            /* Where it is not allowed, threads run where they may. */
            (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
            return;
        }
    }
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    const struct options *options = worker->options;
    uint64_t live = options->live, operations = options->operations;
    unsigned number = worker->number;
    char *value = calloc(1, options->value_bytes);
    if (!value)
        fail("no memory");
    pin(number);
    void *session = session_open(worker->store);
    for (uint64_t n = 0; n < live; n++) {
        memcpy(value, &n, sizeof n);
        session_insert(session, key_of(number, n), value, options->value_bytes);
    }
    pthread_barrier_wait(worker->start);
    worker->from = now_ns();
    for (uint64_t n = 0; n < operations; n++) {
        memcpy(value, &n, sizeof n);
        uint64_t before = now_ns();
        session_insert(session, key_of(number, live + n), value, options->value_bytes);
        uint64_t between = now_ns();
        session_delete(session, key_of(number, n));
        uint64_t after = now_ns();
        worker->samples[n] = between - before;
        worker->samples[operations + n] = after - between;
    }
    worker->to = now_ns();
    if (!session_has(session, key_of(number, live + operations - 1)))
        fail("an entry that was inserted is missing");
    if (session_has(session, key_of(number, operations - 1)))
        fail("an entry that was deleted is there");
    session_close(session);
    free(value);
    return NULL;
}

static int compare(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* The lower of the two middle ones, in microseconds. */
static double median_us(uint64_t *samples, uint64_t count)
{
    qsort(samples, count, sizeof *samples, compare);
    return (double)samples[(count - 1) / 2] / 1000;
}

/* One kind of call: the first or the second half of all workers' samples. */
static void print_calls(const char *name, const struct worker *workers, unsigned half)
{
    const struct options *options = workers->options;
    uint64_t operations = options->operations;
    uint64_t *all = calloc(options->threads * operations, sizeof *all);
    if (!all)
        fail("no memory");
    double per_second = 0;
    for (unsigned n = 0; n < options->threads; n++) {
        const uint64_t *samples = workers[n].samples + half * operations;
        double ns = 0;
        for (uint64_t i = 0; i < operations; i++)
            ns += (double)samples[i];
        per_second += (double)operations * 1e9 / ns;
        memcpy(all + n * operations, samples, operations * sizeof *samples);
    }
    double median = median_us(all, options->threads * operations);
    printf("\"%s\":{\"us_median\":%.3f,\"ops_per_second\":%.0f},", name, median, per_second);
    free(all);
}

/* Both kinds, by the clock on the wall. */
static void print_updates(const struct worker *workers)
{
    const struct options *options = workers->options;
    uint64_t each = 2 * options->operations, from = workers->from, to = workers->to;
    uint64_t *all = calloc(options->threads * each, sizeof *all);
    if (!all)
        fail("no memory");
    for (unsigned n = 0; n < options->threads; n++) {
        from = workers[n].from < from ? workers[n].from : from;
        to = workers[n].to > to ? workers[n].to : to;
        memcpy(all + n * each, workers[n].samples, each * sizeof *all);
    }
    double per_second = (double)(options->threads * each) * 1e9 / (double)(to - from);
    double median = median_us(all, options->threads * each);
    printf("\"update\":{\"us_median\":%.3f,\"ops_per_second\":%.0f}", median, per_second);
    free(all);
}

int main(int count, char **arguments)
{
    if (count != 7)
        fail("usage: %s DIRECTORY VALUE_BYTES THREADS LIVE OPERATIONS durable|relaxed",
             arguments[0]);
    struct options options = {
        .directory = arguments[1],
        .value_bytes = strtoul(arguments[2], NULL, 10),
        .threads = (unsigned)strtoul(arguments[3], NULL, 10),
        .live = strtoull(arguments[4], NULL, 10),
        .operations = strtoull(arguments[5], NULL, 10),
        .durable = strcmp(arguments[6], "durable") == 0,
    };
    if (options.value_bytes < 8 || !options.threads || !options.live || !options.operations)
        fail("values take 8 bytes at least; threads, entries and operations one");
    struct worker *workers = calloc(options.threads, sizeof *workers);
    pthread_t *threads = calloc(options.threads, sizeof *threads);
    if (!workers || !threads)
        fail("no memory");
    void *store = store_open(&options);
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, options.threads);
    for (unsigned n = 0; n < options.threads; n++) {
        uint64_t *samples = calloc(2 * options.operations, sizeof *samples);
        if (!samples)
            fail("no memory");
        /* Written to, so that no page is fetched while calls are timed. */
        memset(samples, 0xff, 2 * options.operations * sizeof *samples);
        workers[n] = (struct worker){
            .options = &options, .store = store, .start = &start, .number = n,
            .samples = samples,
        };
        int error = pthread_create(&threads[n], NULL, work, &workers[n]);
        if (error)
            fail("no thread: %s", strerror(error));
    }
    for (unsigned n = 0; n < options.threads; n++)
        pthread_join(threads[n], NULL);
    store_close(store);
    putchar('{');
    print_calls("insert", workers, 0);
    print_calls("delete", workers, 1);
    print_updates(workers);
    puts("}");
    return 0;
}

#endif
