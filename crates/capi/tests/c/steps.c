/* Changes one structure of each kind in each step, until it is killed. The next run reads the number
 * of steps, repeats them in ordinary memory, and compares. */
#include "check.h"
#include <selvedge/short.h>
#include <selvedge/structures.h>
#include <unistd.h>

#define KEYS 60
#define LONGEST 900

static struct {
    unsigned long steps;
    selvedge_table *table;
    selvedge_tree *tree;
    selvedge_vector *vector;
    selvedge_queue *queue;
    selvedge_journal *journal;
} *my;

/* The expected contents. The number of a string determines its text and length. */
static struct {
    unsigned long by_key[KEYS]; /* 0: none */
    unsigned long line[2000], length;
    unsigned long popped, truncated;
} model;

static unsigned long mix(unsigned long x)
{
    x = (x ^ x >> 31) * 0x7fb5d329728ea185;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44d;
    return x ^ x >> 33;
}

/* Short, too long for a place in the structure, and too long for the log. */
static size_t text(unsigned long number, char *to)
{
    size_t size = number % 7 == 0 ? LONGEST : number % 3 == 0 ? 40 : 8;
    memset(to, (int)number, size);
    memcpy(to, &number, sizeof number);
    return size;
}

static size_t key_of(unsigned long key, char *to)
{
    int size = snprintf(to, 30, "%0*lu", key % 2 ? 25 : 3, key);
    return (size_t)size;
}

static void step(unsigned long n, int durably)
{
    char element[LONGEST], key[30];
    unsigned long random = mix(n), which = random % KEYS, queued = n - model.popped;
    size_t size = text(n, element), key_size = key_of(which, key);
    int puts = random >> 20 & 3, pushes = model.length == 0 || random >> 30 & 7;
    unsigned long shorter = n % 50 == 0 ? model.length / 2 : model.length + pushes - !pushes;
    unsigned long truncated = n > 0 && n % 20 == 0 ? n - 10 : model.truncated;
    /* One block makes all changes of the step. */
    if (durably)
        patomic {
            if (puts) {
                selvedge_table_put(my->table, key, key_size, element, size);
                selvedge_tree_put(my->tree, key, key_size, element, size);
            } else {
                selvedge_table_remove(my->table, key, key_size);
                selvedge_tree_remove(my->tree, key, key_size);
            }
            if (n % 50 == 0)
                selvedge_vector_truncate(my->vector, shorter);
            else if (pushes)
                selvedge_vector_push(my->vector, element, size);
            else
                selvedge_vector_pop(my->vector, NULL, 0);
            selvedge_queue_push(my->queue, element, size);
            if (queued >= 30)
                selvedge_queue_pop(my->queue, NULL, 0);
            selvedge_journal_append(my->journal, element, size);
            selvedge_journal_truncate(my->journal, truncated);
            my->steps += 1;
        }
    model.by_key[which] = puts ? n : 0;
    if (n % 50 != 0 && pushes)
        model.line[model.length] = n;
    model.length = shorter;
    CHECK(model.length < 2000);
    model.popped += queued >= 30;
    model.truncated = truncated;
}

static int is_text(unsigned long number, const char *found, ssize_t size)
{
    char wanted[LONGEST];
    return size == (ssize_t)text(number, wanted) && !memcmp(found, wanted, size);
}

static void check(void)
{
    static char found[LONGEST], key[30], last[30];
    unsigned long there = 0;
    for (unsigned long which = 0; which < KEYS; which++) {
        size_t key_size = key_of(which, key);
        ssize_t a = selvedge_table_get(my->table, key, key_size, found, sizeof found);
        CHECK(model.by_key[which] ? is_text(model.by_key[which], found, a) : a == -1);
        ssize_t b = selvedge_tree_get(my->tree, key, key_size, found, sizeof found);
        CHECK(model.by_key[which] ? is_text(model.by_key[which], found, b) : b == -1);
        there += model.by_key[which] != 0;
    }
    CHECK(selvedge_table_count(my->table) == (ssize_t)there);
    CHECK(selvedge_tree_count(my->tree) == (ssize_t)there);
    selvedge_entry at = {key, sizeof key, 0, found, sizeof found, 0};
    for (int is = selvedge_tree_first(my->tree, &at); is; is = selvedge_tree_next(my->tree, &at)) {
        key[at.key_size] = 0;
        CHECK(is == 1 && strcmp(last, key) < 0);
        strcpy(last, key);
        there -= 1;
    }
    CHECK(there == 0);
    CHECK(selvedge_vector_count(my->vector) == (ssize_t)model.length);
    for (unsigned long n = 0; n < model.length; n++)
        CHECK(is_text(model.line[n], found,
                      selvedge_vector_get(my->vector, n, found, sizeof found)));
    unsigned long queued = my->steps - model.popped;
    CHECK(selvedge_queue_count(my->queue) == (ssize_t)queued);
    if (queued)
        CHECK(is_text(model.popped, found,
                      selvedge_queue_peek(my->queue, found, sizeof found)));
    CHECK(selvedge_journal_count(my->journal) == (ssize_t)(my->steps - model.truncated));
    selvedge_journal_cursor place = {0, {0, 0}};
    for (unsigned long n = model.truncated; n < my->steps; n++)
        CHECK(is_text(n, found,
                      selvedge_journal_read(my->journal, &place, found, sizeof found)));
}

int main(int argc, char **argv)
{
    my = selvedge_root("steps", sizeof *my);
    CHECK(my != NULL);
    if (!my->table)
        patomic {
            selvedge_table_create(&my->table);
            selvedge_tree_create(&my->tree);
            selvedge_vector_create(&my->vector);
            selvedge_queue_create(&my->queue);
            selvedge_journal_create(&my->journal);
        }
    for (unsigned long n = 0; n < my->steps; n++)
        step(n, 0);
    check();
    printf("%lu\n", my->steps);
    fflush(stdout);
    if (argc > 1 && !strcmp(argv[1], "check"))
        return 0;
    for (;;) {
        step(my->steps, 1);
        if (my->steps % 100 == 1)
            CHECK(write(1, "\n", 1) == 1);
    }
}
