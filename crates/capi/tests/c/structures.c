/* All calls of selvedge/structures.h, inside and outside of blocks.
 * Without an argument, each run leaves the structures
 * empty. "make" leaves data in named structures for another program; "find" finds the data of that
 * program. "full" fills the heap. */
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <selvedge/short.h>
#include <selvedge/structures.h>
#include <signal.h>
#include <sys/resource.h>

#define FAILS(call, error)           \
    do {                             \
        errno = 0;                   \
        CHECK((call) == -1);         \
        CHECK(errno == (error));     \
    } while (0)

#define PUT(kind, it, key, value) \
    selvedge_##kind##_put(it, key, strlen(key), value, strlen(value))
#define GET(kind, it, key) selvedge_##kind##_get(it, key, strlen(key), buffer, sizeof buffer)
#define IS(call, text) ((call) == (ssize_t)strlen(text) && !memcmp(buffer, text, strlen(text)))

#define LONG "a string that is too long to lie in the structure itself"

static pstatic struct {
    selvedge_table *table;
    selvedge_tree *tree;
    selvedge_vector *vector;
    selvedge_queue *queue;
    selvedge_journal *journal;
    char text[100];
} my;

static char buffer[100];

/* --- each structure ---------------------------------------------------------------------- */

static void table(void)
{
    selvedge_table *table = my.table;
    CHECK(PUT(table, table, "one", "1") == 0 && PUT(table, table, LONG, LONG LONG) == 0);
    CHECK(PUT(table, table, "", "") == 0 && selvedge_table_count(table) == 3);
    CHECK(IS(GET(table, table, "one"), "1") && IS(GET(table, table, ""), ""));
    /* As much as there is room for. */
    memset(buffer, 'x', sizeof buffer);
    CHECK(selvedge_table_get(table, LONG, strlen(LONG), buffer, 3) == 2 * (ssize_t)strlen(LONG));
    CHECK(!memcmp(buffer, "a sx", 4));
    CHECK(selvedge_table_get(table, "one", 3, NULL, 0) == 1);
    FAILS(GET(table, table, "two"), ENOENT);
    CHECK(PUT(table, table, "one", LONG) == 0 && IS(GET(table, table, "one"), LONG));
    CHECK(selvedge_table_remove(table, "one", 3) == 0);
    FAILS(selvedge_table_remove(table, "one", 3), ENOENT);
    CHECK(selvedge_table_count(table) == 2);
    /* All entries, each once. */
    CHECK(selvedge_table_clear(table, 2) == 1);
    for (unsigned long n = 0; n < 300; n++)
        CHECK(selvedge_table_put(table, &n, sizeof n, &n, sizeof n) == 0);
    unsigned long key, value, sum = 0, all = 0;
    selvedge_entry at = {&key, sizeof key, 0, &value, sizeof value, 0};
    patomic {
        sum = all = 0;
        for (int is = selvedge_table_first(table, &at); is == 1;
             is = selvedge_table_next(table, &at)) {
            sum += key == value ? value : 1000;
            all += at.key_size == sizeof key && at.value_size == sizeof value;
        }
    }
    CHECK(all == 300 && sum == 299 * 300 / 2);
    CHECK(selvedge_table_remove(table, &key, sizeof key) == 0);
    FAILS(selvedge_table_next(table, &at), ENOENT);
    int is = 0, times = 0;
    do
        CHECK((is = selvedge_table_clear(table, 100)) >= 0);
    while (times++, is == 0);
    CHECK(times == 3 && selvedge_table_count(table) == 0);
    CHECK(selvedge_table_first(table, &at) == 0);
}

static void tree(void)
{
    selvedge_tree *tree = my.tree;
    char key[20], number[20];
    selvedge_entry at = {key, sizeof key, 0, number, sizeof number, 0};
    CHECK(selvedge_tree_first(tree, &at) == 0 && selvedge_tree_last(tree, &at) == 0);
    for (int n = 0; n < 500; n++) {
        int mixed = n * 7 % 500;
        int size = snprintf(key, sizeof key, "no. %012d", mixed);
        CHECK(selvedge_tree_put(tree, key, size, &mixed, sizeof mixed) == 0);
    }
    CHECK(selvedge_tree_count(tree) == 500);
    int n = 0, value;
    at.value = &value, at.value_room = sizeof value;
    for (int is = selvedge_tree_first(tree, &at); is == 1; is = selvedge_tree_next(tree, &at))
        CHECK(at.key_size == 16 && value == n++);
    CHECK(n == 500);
    CHECK(selvedge_tree_last(tree, &at) == 1 && value == 499);
    CHECK(selvedge_tree_next(tree, &at) == 0);
    /* A range, in one block. */
    int sum = 0;
    patomic {
        sum = 0;
        for (int is = selvedge_tree_seek(tree, "no. 000000000997", 16, &at); is == 1;
             is = selvedge_tree_next(tree, &at))
            sum += value;
    }
    CHECK(sum == 0);
    patomic {
        sum = 0;
        for (int is = selvedge_tree_seek(tree, "no. 00000000049", 15, &at); is == 1;
             is = selvedge_tree_next(tree, &at))
            sum += value;
    }
    CHECK(sum == 4945);
    CHECK(selvedge_tree_seek(tree, "o", 1, &at) == 0);
    /* From the key of a removed entry. */
    CHECK(selvedge_tree_seek(tree, "no. 000000000123", 16, &at) == 1 && value == 123);
    CHECK(selvedge_tree_remove(tree, "no. 000000000123", 16) == 0);
    CHECK(selvedge_tree_next(tree, &at) == 1 && value == 124);
    FAILS(selvedge_tree_get(tree, "no. 000000000123", 16, NULL, 0), ENOENT);
    FAILS(selvedge_tree_remove(tree, "no. 000000000123", 16), ENOENT);
    /* Sizes without buffers; a key that is cut off. */
    selvedge_entry sizes = {NULL, 0, 0, NULL, 0, 0};
    CHECK(selvedge_tree_first(tree, &sizes) == 1);
    CHECK(sizes.key_size == 16 && sizes.value_size == sizeof value);
    FAILS(selvedge_tree_next(tree, &sizes), EMSGSIZE);
    CHECK(selvedge_tree_clear(tree, 498) == 0 && selvedge_tree_count(tree) == 1);
    CHECK(selvedge_tree_first(tree, &at) == 1 && value == 499);
    CHECK(selvedge_tree_clear(tree, 1) == 1);
}

static void vector(void)
{
    selvedge_vector *vector = my.vector;
    FAILS(selvedge_vector_pop(vector, buffer, sizeof buffer), ENOENT);
    for (long n = 0; n < 100; n++)
        CHECK(selvedge_vector_push(vector, &n, sizeof n) == n);
    long number = 0;
    CHECK(selvedge_vector_get(vector, 42, &number, sizeof number) == 8 && number == 42);
    FAILS(selvedge_vector_get(vector, 100, &number, sizeof number), ENOENT);
    CHECK(selvedge_vector_set(vector, 42, LONG, strlen(LONG)) == 0);
    FAILS(selvedge_vector_set(vector, 100, LONG, strlen(LONG)), ENOENT);
    CHECK(selvedge_vector_truncate(vector, 43) == 0 && selvedge_vector_count(vector) == 43);
    FAILS(selvedge_vector_pop(vector, buffer, 3), EMSGSIZE);
    CHECK(IS(selvedge_vector_pop(vector, buffer, sizeof buffer), LONG));
    CHECK(selvedge_vector_pop(vector, NULL, 0) == 8 && selvedge_vector_count(vector) == 41);
    CHECK(selvedge_vector_clear(vector, 40) == 0 && selvedge_vector_clear(vector, 40) == 1);
}

static void queue(void)
{
    selvedge_queue *queue = my.queue;
    FAILS(selvedge_queue_peek(queue, buffer, sizeof buffer), ENOENT);
    FAILS(selvedge_queue_pop(queue, buffer, sizeof buffer), ENOENT);
    CHECK(selvedge_queue_push(queue, LONG, strlen(LONG)) == 0);
    for (long n = 0; n < 100; n++)
        CHECK(selvedge_queue_push(queue, &n, sizeof n) == 0);
    CHECK(IS(selvedge_queue_peek(queue, buffer, sizeof buffer), LONG));
    FAILS(selvedge_queue_pop(queue, buffer, 3), EMSGSIZE);
    CHECK(IS(selvedge_queue_pop(queue, buffer, sizeof buffer), LONG));
    for (long n = 0, found; n < 50; n++)
        CHECK(selvedge_queue_pop(queue, &found, sizeof found) == 8 && found == n);
    CHECK(selvedge_queue_count(queue) == 50);
    CHECK(selvedge_queue_clear(queue, 49) == 0 && selvedge_queue_clear(queue, 1) == 1);
}

static void journal(void)
{
    selvedge_journal *journal = my.journal;
    selvedge_journal_cursor place = {0, {0, 0}};
    int64_t first = selvedge_journal_append(journal, LONG, strlen(LONG));
    CHECK(first >= 0);
    for (int n = 1; n < 200; n++)
        CHECK(selvedge_journal_append(journal, LONG, n % strlen(LONG)) == first + n);
    for (int n = 0; n < 200; n++) {
        ssize_t size = n ? n % strlen(LONG) : strlen(LONG);
        CHECK(selvedge_journal_read(journal, &place, buffer, sizeof buffer) == size);
        CHECK(!memcmp(buffer, LONG, size) && place.number == (uint64_t)first + n + 1);
        if (n == 99)
            CHECK(selvedge_journal_truncate(journal, place.number) == 0);
    }
    FAILS(selvedge_journal_read(journal, &place, buffer, sizeof buffer), ENOENT);
    CHECK(selvedge_journal_count(journal) == 100);
    /* From the first record that is left. */
    selvedge_journal_cursor start = {0, {0, 0}};
    CHECK(selvedge_journal_read(journal, &start, NULL, 0) == 100 % (ssize_t)strlen(LONG));
    CHECK(start.number == (uint64_t)first + 101);
    CHECK(selvedge_journal_clear(journal, 99) == 0 && selvedge_journal_clear(journal, 9) == 1);
    /* The end is the place of the next record. */
    CHECK(selvedge_journal_append(journal, "!", 1) == first + 200);
    CHECK(IS(selvedge_journal_read(journal, &place, buffer, sizeof buffer), "!"));
    CHECK(selvedge_journal_clear(journal, 1) == 1);
}

/* --- in blocks -------------------------------------------------------------------------- */

/* A block that has only calls. */
static void whole(void)
{
    int refused = 0;
    patomic {
        PUT(table, my.table, "one", "1");
        selvedge_queue_push(my.queue, "one", 3);
        __transaction_cancel;
    }
    CHECK(selvedge_table_count(my.table) == 0 && selvedge_queue_count(my.queue) == 0);
    /* Strings and buffers in any memory are part of the block. */
    char here[8] = "key", *there = malloc(100), found[100] = "", again[8] = "";
    static char text[] = "value"; /* not a constant, on which gcc fails */
    selvedge_journal_cursor place = {0, {0, 0}};
    ssize_t size = 0;
    memset(there, 0, 100);
    patomic {
        char young[8] = "";
        for (int n = 0; n < 5; n++)
            here[n] = young[n] = there[n] = my.text[n] = text[n];
        selvedge_table_put(my.table, here, 5, young, 5);
        selvedge_tree_put(my.tree, there, 5, my.text, 5);
        selvedge_table_get(my.table, "value", 5, there + 10, 90);
        selvedge_tree_get(my.tree, young, 5, my.text + 10, 90);
        size = selvedge_table_get(my.table, my.text + 10, 5, found, sizeof found);
        selvedge_tree_get(my.tree, there + 10, 5, again, sizeof again);
        selvedge_journal_append(my.journal, there, 5);
        selvedge_journal_read(my.journal, &place, NULL, 0);
    }
    CHECK(size == 5 && !strcmp(there + 10, "value") && !strcmp(my.text + 10, "value"));
    CHECK(!strcmp(found, "value") && !strcmp(again, "value"));
    /* A cancel restores buffers, cursors and places. */
    selvedge_journal_cursor before = place;
    patomic {
        selvedge_table_put(my.table, here, 5, "other", 5);
        selvedge_table_get(my.table, here, 5, there + 10, 90);
        selvedge_table_get(my.table, here, 5, my.text + 10, 90);
        selvedge_table_get(my.table, here, 5, found, sizeof found);
        selvedge_journal_append(my.journal, there, 5);
        selvedge_journal_read(my.journal, &place, NULL, 0);
        __transaction_cancel;
    }
    CHECK(!strcmp(there + 10, "value") && !strcmp(my.text + 10, "value"));
    CHECK(!strcmp(found, "value") && !memcmp(&before, &place, sizeof place));
    /* So does the cancel of an inner block. */
    patomic {
        selvedge_tree_put(my.tree, "outer", 5, "1", 1);
        patomic {
            selvedge_tree_put(my.tree, "inner", 5, "1", 1);
            selvedge_tree_get(my.tree, "inner", 5, found, sizeof found);
            __transaction_cancel;
        }
        refused = selvedge_tree_get(my.tree, "inner", 5, NULL, 0) == -1;
    }
    CHECK(refused && !strcmp(found, "value") && selvedge_tree_count(my.tree) == 2);
    /* A refused call leaves the block unchanged. */
    patomic {
        selvedge_tree_put(my.tree, "before", 6, "1", 1);
        refused = selvedge_tree_put(my.tree, "huge", 4, NULL, 7);
        refused += selvedge_tree_put(NULL, "huge", 4, NULL, 0);
        refused += selvedge_tree_put(my.tree, here, (size_t)5 << 30, NULL, 0);
        refused += selvedge_tree_remove(my.tree, "huge", 4);
        selvedge_tree_put(my.tree, "after", 5, "1", 1);
    }
    CHECK(refused == -4 && selvedge_tree_count(my.tree) == 4);
    CHECK(selvedge_table_clear(my.table, 9) == 1 && selvedge_tree_clear(my.tree, 9) == 1);
    CHECK(selvedge_queue_clear(my.queue, 9) == 1 && selvedge_journal_clear(my.journal, 9) == 1);
    memset(my.text, 0, sizeof my.text);
    free(there);
}

/* A full heap: in a block that continues, and outside of blocks. */
static void full(void)
{
    /* The limit makes the files small, and their number is limited. */
    struct rlimit limit = {2 << 20, 2 << 20};
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && !setrlimit(RLIMIT_FSIZE, &limit));
    size_t most = 1 << 20;
    char *large = calloc(1, most);
    int stored = 0, lacks = 0;
    if (!my.tree)
        selvedge_tree_create(&my.tree);
    while (selvedge_tree_put(my.tree, &stored, sizeof stored, large, most) == 0)
        stored += 1;
    CHECK(errno == ENOMEM && stored > 10);
    CHECK(selvedge_tree_count(my.tree) == stored);
    patomic {
        my.text[0] = 'y';
        lacks = selvedge_tree_put(my.tree, LONG, strlen(LONG), large, most);
        lacks += selvedge_tree_get(my.tree, LONG, strlen(LONG), NULL, 0);
        my.text[1] = 'z';
    }
    CHECK(lacks == -2 && my.text[0] == 'y' && my.text[1] == 'z');
    CHECK(selvedge_tree_count(my.tree) == stored);
    while (selvedge_tree_clear(my.tree, 10) == 0)
        ;
    memset(my.text, 0, sizeof my.text);
    free(large);
}

/* --- threads ---------------------------------------------------------------------------- */

#define THREADS 3
#define ROUNDS 2000
#define ACCOUNTS 20

/* Moves money from one account to another, in table and tree, and appends a record. */
static void *transfer(void *argument)
{
    unsigned long seed = (unsigned long)argument + 1;
    for (int n = 0; n < ROUNDS; n++) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        int from = seed >> 40 & 0xffff, to = seed >> 24 & 0xffff;
        from %= ACCOUNTS, to %= ACCOUNTS;
        patomic {
            long left = 0, right = 0;
            selvedge_table_get(my.table, &from, sizeof from, &left, sizeof left);
            left -= 1;
            selvedge_table_put(my.table, &from, sizeof from, &left, sizeof left);
            selvedge_tree_get(my.tree, &to, sizeof to, &right, sizeof right);
            right += 1;
            selvedge_tree_put(my.tree, &to, sizeof to, &right, sizeof right);
            selvedge_queue_push(my.queue, &to, sizeof to);
            if (selvedge_queue_count(my.queue) > 10)
                selvedge_queue_pop(my.queue, NULL, 0);
        }
    }
    return NULL;
}

static void threads(void)
{
    pthread_t others[THREADS];
    for (unsigned long n = 0; n < THREADS; n++)
        CHECK(!pthread_create(&others[n], NULL, transfer, (void *)n));
    for (int n = 0; n < THREADS; n++)
        CHECK(!pthread_join(others[n], NULL));
    long sums[2] = {0, 0}, value = 0;
    for (int n = 0; n < ACCOUNTS; n++) {
        if (selvedge_table_get(my.table, &n, sizeof n, &value, sizeof value) == 8)
            sums[0] += value;
        if (selvedge_tree_get(my.tree, &n, sizeof n, &value, sizeof value) == 8)
            sums[1] += value;
    }
    CHECK(sums[0] == -THREADS * ROUNDS && sums[1] == THREADS * ROUNDS);
    CHECK(selvedge_queue_count(my.queue) == 10);
    CHECK(selvedge_table_clear(my.table, ACCOUNTS) == 1);
    CHECK(selvedge_tree_clear(my.tree, ACCOUNTS) == 1);
    CHECK(selvedge_queue_clear(my.queue, 10) == 1);
}

#define RECORDS 10000

static void *change(void *argument)
{
    for (long n = 0; n < RECORDS; n++) {
        CHECK(selvedge_tree_put(my.tree, "b", 1, &n, sizeof n) == 0);
        CHECK(selvedge_journal_append(my.journal, &n, sizeof n) >= 0);
    }
    return argument;
}

/* A cursor and a place move once with each call, also after failed attempts. The buffers are durable,
 * so that each call has a commit, and other threads conflict with it. */
static void follow(void)
{
    char key;
    selvedge_entry at = {&key, 1, 0, my.text, 8, 0};
    selvedge_journal_cursor place = {0, {0, 0}};
    pthread_t other;
    for (int n = 0; n < 4; n++)
        CHECK(selvedge_tree_put(my.tree, &"abcd"[n], 1, "", 0) == 0);
    CHECK(!pthread_create(&other, NULL, change, NULL));
    for (long n = 0, found; n < RECORDS;) {
        int keys = 0;
        for (int is = selvedge_tree_first(my.tree, &at); is == 1;
             is = selvedge_tree_next(my.tree, &at))
            CHECK(key == "abcd"[keys++]);
        CHECK(keys == 4);
        if (selvedge_journal_read(my.journal, &place, my.text + 8, 8) == 8) {
            memcpy(&found, my.text + 8, sizeof found);
            CHECK(found == n++);
        } else {
            CHECK(errno == ENOENT);
        }
    }
    CHECK(!pthread_join(other, NULL));
    CHECK(selvedge_tree_clear(my.tree, 4) == 1);
    while (selvedge_journal_clear(my.journal, 1000) == 0)
        ;
    CHECK(selvedge_journal_count(my.journal) == 0);
    memset(my.text, 0, sizeof my.text);
}

/* --- names, and addresses without a structure -------------------------------------------- */

static void named(void)
{
    selvedge_table *table = NULL;
    selvedge_tree *tree = NULL;
    patomic {
        table = selvedge_table_root("a table");
        PUT(table, table, "one", "1");
    }
    CHECK(table && selvedge_table_root("a table") == table);
    CHECK(IS(GET(table, table, "one"), "1"));
    errno = 0;
    CHECK(selvedge_tree_root("a table") == NULL && errno == EINVAL);
    CHECK(strstr(selvedge_message(), "B+ tree"));
    CHECK(selvedge_table_root("") == NULL && selvedge_table_root(NULL) == NULL);
    CHECK(selvedge_table_clear(table, 1) == 1 && selvedge_root_remove("a table") == 0);
    /* Created and freed, together with the pointer. */
    CHECK(selvedge_tree_create(&tree) == tree && tree);
    CHECK(PUT(tree, tree, LONG, LONG) == 0);
    patomic {
        selvedge_tree_free(&tree);
        __transaction_cancel;
    }
    CHECK(IS(GET(tree, tree, LONG), LONG));
    CHECK(selvedge_tree_free(&tree) == 0 && tree == NULL && selvedge_tree_free(&tree) == 0);
    FAILS(selvedge_tree_free(NULL), EINVAL);
    FAILS(selvedge_tree_count(NULL), EINVAL);
    FAILS(selvedge_tree_count((selvedge_tree *)buffer), EINVAL);
    FAILS(selvedge_tree_count((selvedge_tree *)((char *)my.tree + 1)), EINVAL);
    FAILS(selvedge_queue_push(my.queue, NULL, 1), EINVAL);
    FAILS(selvedge_tree_first(my.tree, NULL), EINVAL);
}

/* Outside of blocks, too, a durable buffer is written to by a transaction. */
static void durable_buffers(void)
{
    size_t size = 3 << 20;
    char *large = malloc(size), *copy = NULL;
    memset(large, 'l', size);
    CHECK(pmalloc_set(size, &copy, 'c') == copy);
    CHECK(selvedge_queue_push(my.queue, LONG, strlen(LONG)) == 0);
    CHECK(selvedge_queue_push(my.queue, large, size) == 0);
    CHECK(selvedge_queue_pop(my.queue, copy + 1, 100) == (ssize_t)strlen(LONG));
    CHECK(copy[0] == 'c' && !memcmp(copy + 1, LONG "c", strlen(LONG) + 1));
    CHECK(selvedge_queue_peek(my.queue, my.text + 1, 8) == (ssize_t)size);
    CHECK(!memcmp(my.text, "\0llllllll\0", 10));
    /* More than a log holds. */
    CHECK(selvedge_queue_pop(my.queue, copy, size) == (ssize_t)size);
    CHECK(!memcmp(copy, large, size) && selvedge_queue_count(my.queue) == 0);
    CHECK(pfree(&copy) == 0);
    memset(my.text, 0, sizeof my.text);
    free(large);
}

/* --- programs in two languages ---------------------------------------------------------- */

static void make(void)
{
    selvedge_journal_cursor place = {0, {0, 0}};
    CHECK(PUT(table, selvedge_table_root("table"), "made", "by C, as " LONG) == 0);
    CHECK(PUT(tree, selvedge_tree_root("tree"), "made", "by C, as " LONG) == 0);
    CHECK(selvedge_vector_push(selvedge_vector_root("vector"), "by C", 4) == 0);
    CHECK(selvedge_queue_push(selvedge_queue_root("queue"), "by C", 4) == 0);
    CHECK(selvedge_journal_append(selvedge_journal_root("journal"), "by C", 4) == 0);
    CHECK(selvedge_journal_read(selvedge_journal_root("journal"), &place, NULL, 0) == 4);
}

static void find(void)
{
    selvedge_journal_cursor place = {1, {0, 0}};
    CHECK(IS(GET(table, selvedge_table_root("table"), "made"), "by Rust"));
    CHECK(IS(GET(tree, selvedge_tree_root("tree"), "made"), "by Rust"));
    CHECK(IS(selvedge_vector_get(selvedge_vector_root("vector"), 1, buffer, 100), "by Rust"));
    CHECK(IS(selvedge_queue_pop(selvedge_queue_root("queue"), buffer, 100), "by Rust"));
    CHECK(selvedge_journal_truncate(selvedge_journal_root("journal"), 1) == 0);
    CHECK(IS(selvedge_journal_read(selvedge_journal_root("journal"), &place, buffer, 100),
             "by Rust"));
}

int main(int argc, char **argv)
{
    CHECK(selvedge_start() == 0);
    if (argc > 1) {
        !strcmp(argv[1], "make") ? make() : !strcmp(argv[1], "find") ? find() : full();
        return 0;
    }
    if (!my.table) {
        CHECK(selvedge_table_create(&my.table) == my.table && my.table);
        CHECK(selvedge_tree_create(&my.tree) == my.tree && my.tree);
        CHECK(selvedge_vector_create(&my.vector) == my.vector && my.vector);
        CHECK(selvedge_queue_create(&my.queue) == my.queue && my.queue);
        CHECK(selvedge_journal_create(&my.journal) == my.journal && my.journal);
    }
    table();
    tree();
    vector();
    queue();
    journal();
    whole();
    threads();
    follow();
    named();
    durable_buffers();
    CHECK(selvedge_table_count(my.table) == 0 && selvedge_tree_count(my.tree) == 0);
    CHECK(selvedge_vector_count(my.vector) == 0 && selvedge_queue_count(my.queue) == 0);
    return 0;
}
