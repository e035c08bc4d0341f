/* Threads insert, update and delete entries of one hash table, given by seeds, until the program is
 * killed. The next run computes the expected table from the steps of each thread, and compares. */
#include "check.h"
#include <pthread.h>
#include <selvedge/short.h>
#include <unistd.h>

#define THREADS 3
#define KEYS 40
#define BUCKETS 16

struct entry {
    struct entry *next;
    unsigned long key, value;
    unsigned char *text;
    unsigned long length;
};

struct table {
    unsigned long seed;
    unsigned long steps[THREADS];
    unsigned long count, checksum;
    struct entry *buckets[BUCKETS];
};

static struct table *table;

struct step {
    unsigned long key, value;
    int what;
};

SELVEDGE_SAFE static unsigned long mix(unsigned long x)
{
    x = (x ^ x >> 31) * 0x7fb5d329728ea185;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44d;
    return x ^ x >> 33;
}

static struct step step_of(unsigned long thread, unsigned long number)
{
    unsigned long random = mix(table->seed ^ mix(thread << 40 ^ number));
    /* Keys of different threads are in the same buckets. */
    unsigned long key = random % KEYS * THREADS + thread;
    return (struct step){key, random >> 20, random >> 10 & 3};
}

SELVEDGE_SAFE static unsigned long length_of(unsigned long value) { return 1 + value % 300; }

SELVEDGE_SAFE static unsigned long summand(unsigned long key, unsigned long value)
{
    return mix(key << 48 ^ value);
}

SELVEDGE_SAFE static struct entry **find(unsigned long key)
{
    struct entry **at = &table->buckets[mix(key) % BUCKETS];
    while (*at && (*at)->key != key)
        at = &(*at)->next;
    return at;
}

SELVEDGE_SAFE static void fill(struct entry *entry, unsigned long value)
{
    entry->value = value;
    entry->length = length_of(value);
    pmalloc(entry->length, &entry->text);
    for (unsigned long n = 0; n < entry->length; n++)
        entry->text[n] = value >> n % 8;
    table->checksum += summand(entry->key, value);
}

SELVEDGE_SAFE static void empty(struct entry *entry)
{
    table->checksum -= summand(entry->key, entry->value);
    pfree(&entry->text);
}

static void take(unsigned long thread, unsigned long number)
{
    struct step step = step_of(thread, number);
    patomic {
        struct entry **at = find(step.key);
        if (step.what == 0 && *at) {
            struct entry *gone = *at;
            empty(gone);
            *at = gone->next;
            pfree(&gone);
            table->count -= 1;
        } else if (step.what != 0 && *at) {
            empty(*at);
            fill(*at, step.value);
        } else if (step.what != 0) {
            struct entry *entry = pmalloc(sizeof *entry, NULL);
            entry->key = step.key;
            entry->next = *at;
            *at = entry;
            fill(entry, step.value);
            table->count += 1;
        }
        table->steps[thread] += 1;
    }
}

static unsigned long check(void)
{
    unsigned long values[KEYS * THREADS], all = 0, count = 0, checksum = 0;
    char there[KEYS * THREADS] = {0};
    for (unsigned long thread = 0; thread < THREADS; thread++) {
        all += table->steps[thread];
        for (unsigned long n = 0; n < table->steps[thread]; n++) {
            struct step step = step_of(thread, n);
            there[step.key] = step.what != 0;
            values[step.key] = step.value;
        }
    }
    for (unsigned long key = 0; key < KEYS * THREADS; key++) {
        struct entry *entry = *find(key);
        CHECK(there[key] == (entry != NULL));
        if (!entry)
            continue;
        CHECK(entry->value == values[key] && entry->length == length_of(entry->value));
        CHECK(pmalloc_usable_size(entry->text) >= entry->length);
        for (unsigned long n = 0; n < entry->length; n++)
            CHECK(entry->text[n] == (unsigned char)(entry->value >> n % 8));
        count += 1;
        checksum += summand(key, entry->value);
    }
    CHECK(count == table->count && checksum == table->checksum);
    return all;
}

static void *work(void *argument)
{
    unsigned long thread = (unsigned long)argument;
    for (unsigned long n = table->steps[thread];; n++) {
        take(thread, n);
        if (thread == 0 && n % 100 == 0)
            CHECK(write(1, "\n", 1) == 1);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    table = selvedge_root("table", sizeof *table);
    CHECK(table != NULL);
    if (table->seed == 0)
        patomic { table->seed = 20260101; }
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
