/* Regions, logs and primitives. The first run makes them; the second finds and removes them. */
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <selvedge/short.h>

#define LENGTH (5 << 20)

static pstatic long *region, *other;
static pstatic void *log_region[2];
static pstatic long word;
static pstatic struct {
    long a, b;
} pair;

static void check_refused(void)
{
    static pstatic void *durable;
    void *mine = NULL;
    CHECK(pmap(NULL, 4096, PROT_READ | PROT_WRITE, 0) == NULL && errno == EINVAL);
    CHECK(pmap(&mine, 0, PROT_READ | PROT_WRITE, 0) == NULL && errno == EINVAL);
    CHECK(pmap(&mine, 4096, PROT_READ, 0) == NULL && errno == EINVAL);
    CHECK(pmap(&mine, 4096, PROT_READ | PROT_WRITE, 0) == NULL && errno == EINVAL);
    CHECK(strstr(selvedge_message(), "is not in durable memory"));
    CHECK(log_create(&mine, 8192, SELVEDGE_LOG_TORNBIT) == NULL && errno == EINVAL);
    CHECK(pmap(&durable, (size_t)1 << 45, PROT_READ | PROT_WRITE, 0) == NULL && errno == ENOMEM);
    CHECK(durable == NULL && mine == NULL && punmap(&mine, 0) == 0 && punmap(NULL, 0) == -1);
    mine = &mine;
    CHECK(punmap(&mine, 0) == -1 && errno == EINVAL && mine == &mine);
    /* A part of the heap is not a region. */
    void *block = pmalloc(100, &mine);
    CHECK(block && punmap(&mine, 0) == -1 && errno == EINVAL);
    CHECK(pfree(&mine) == 0);
    CHECK(log_create(&mine, 100, SELVEDGE_LOG_TORNBIT) == NULL && errno == EINVAL);
    CHECK(log_create(&mine, 8192, 7) == NULL && errno == EINVAL);
    CHECK(log_open(&errno) == NULL && errno == EINVAL);
}

/* A record of `number` bytes, each of that value. */
static int append(selvedge_log *log, int number)
{
    char record[200];
    memset(record, number, sizeof record);
    return log_append(log, record, number % sizeof record);
}

static int is_next(selvedge_log *log, int number)
{
    char record[200];
    if (log_read(log, record, sizeof record) != number % (int)sizeof record)
        return 0;
    for (int n = 0; n < number % (int)sizeof record; n++)
        if (record[n] != (char)number)
            return 0;
    return 1;
}

static int is_at_end(selvedge_log *log)
{
    char record[1];
    return log_read(log, record, 1) == -1 && errno == ENOMSG;
}

static void make(void)
{
    CHECK(pmap(&region, LENGTH, PROT_READ | PROT_WRITE, 0) == region && region != NULL);
    CHECK(pmap(&other, 1, PROT_READ | PROT_WRITE, 0) == other && other != region);
    for (int n = 0; n < LENGTH / 8; n++)
        CHECK(region[n] == 0);
    patomic { region[LENGTH / 8 - 1] = 5; }
    for (int kind = 0; kind < 2; kind++) {
        selvedge_log *log = log_create(&log_region[kind], 16384, kind);
        CHECK(log != NULL && log_region[kind] != NULL && is_at_end(log));
        for (int n = 0; n < 20; n++)
            CHECK(append(log, n) == 0);
        CHECK(is_at_end(log));
        CHECK(log_flush(log) == 0);
        for (int n = 0; n < 10; n++)
            CHECK(is_next(log, n));
        char small[3];
        CHECK(log_read(log, small, 3) == -1 && errno == EMSGSIZE);
        CHECK(is_next(log, 10));
        CHECK(log_drop_read(log) == 0);
        CHECK(is_next(log, 11));
        log_close(log);
    }
    /* Without a log: the pair first, then the word that makes it valid. */
    wtstore(&pair.a, 7);
    store(&pair.b, 8);
    flush(&pair.b);
    CHECK(fence() == 0);
    store(&word, 1);
    flush(&word);
    CHECK(fence() == 0);
    long mine = 0;
    wtstore(&mine, 3);
    flush(&mine);
    CHECK(mine == 3);
}

static void find(void)
{
    CHECK(word == 1 && pair.a == 7 && pair.b == 8);
    CHECK(region[LENGTH / 8 - 1] == 5 && region[0] == 0 && other[0] == 0);
    CHECK(punmap(&region, 4096) == -1 && errno == EINVAL && region != NULL);
    CHECK(punmap(&region, LENGTH) == 0 && region == NULL);
    CHECK(punmap(&other, 0) == 0 && other == NULL);
    for (int kind = 0; kind < 2; kind++) {
        selvedge_log *log = log_open(log_region[kind]);
        CHECK(log != NULL);
        for (int n = 11; n < 20; n++)
            CHECK(is_next(log, n));
        CHECK(is_at_end(log));
        /* Until there is no room, twice. */
        for (int round = 0; round < 5; round++) {
            int count = 0;
            while (append(log, 150) == 0)
                count++;
            CHECK(errno == ENOSPC && count > 50);
            CHECK(log_flush(log) == 0);
            CHECK(round % 2 || is_next(log, 150));
            CHECK(log_truncate(log) == 0 && is_at_end(log));
        }
        CHECK(append(log, 3) == 0 && log_flush(log) == 0 && is_next(log, 3));
        static char large[20000];
        CHECK(log_append(log, large, sizeof large) == -1 && errno == E2BIG);
        CHECK(log_append(log, NULL, 0) == 0 && log_flush(log) == 0);
        CHECK(log_read(log, NULL, 0) == 0);
        log_close(log);
        CHECK(punmap(&log_region[kind], 0) == 0);
    }
    word = 0;
}

/* Addresses outside of all regions, and no bytes, are harmless. */
static void stray(void)
{
    char *nowhere = (char *)0x20f000000000;
    CHECK(pmalloc(8, &other) == other && other != NULL && selvedge_is_persistent(other) && selvedge_is_persistent(&pair));
    CHECK(!selvedge_is_persistent(nowhere) && !selvedge_is_persistent(&nowhere));
    errno = 0;
    flush(nowhere);
    CHECK(errno == EINVAL && strstr(selvedge_message(), "0x20f000000000"));
    errno = 0;
    wtstore(nowhere, 1);
    CHECK(errno == EINVAL);
    selvedge_flush(other, (size_t)1 << 40);
    selvedge_write_through(other, NULL, 0);
    selvedge_write_through(NULL, other, 0);
    CHECK(fence() == 0);
    CHECK(pfree(&other) == 0);
}

/* Errors in a hook, on another thread, and for a region with an open log. */
static selvedge_log *open_log;
static ssize_t in_hook;

static void read_again(const char *message, void *argument)
{
    char record[100];
    (void)message, (void)argument;
    in_hook = log_read(open_log, record, sizeof record);
}

static void *from_elsewhere(void *refuses)
{
    int expected = refuses ? -1 : 0;
    CHECK(log_append(open_log, "b", 1) == expected && (!refuses || errno == EBUSY));
    CHECK(log_flush(open_log) == expected && (!refuses || errno == EBUSY));
    return NULL;
}

static void elsewhere(void *refuses)
{
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, from_elsewhere, refuses));
    CHECK(!pthread_join(thread, NULL));
}

static void open_logs(void)
{
    static pstatic void *place;
    char record[4];
    CHECK((open_log = log_create(&place, 8192, SELVEDGE_LOG_TORNBIT)) != NULL);
    CHECK(log_open(place) == NULL && errno == EBUSY);
    CHECK(punmap(&place, 0) == -1 && errno == EBUSY && place != NULL);
    CHECK(log_append(open_log, "0123456789", 10) == 0);
    elsewhere(&place);
    CHECK(log_flush(open_log) == 0);
    elsewhere(NULL);
    selvedge_set_message_hook(read_again, NULL);
    CHECK(log_read(open_log, record, sizeof record) == -1 && errno == EMSGSIZE);
    selvedge_set_message_hook(NULL, NULL);
    CHECK(in_hook == 10 && log_read(open_log, record, sizeof record) == 1);
    log_close(open_log);
    CHECK((open_log = log_open(place)) != NULL);
    log_close(open_log);
    CHECK(punmap(&place, 0) == 0);
}

int main(void)
{
    check_refused();
    if (!word) {
        stray();
        open_logs();
    }
    if (word)
        find();
    else
        make();
    return 0;
}
