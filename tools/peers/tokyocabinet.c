/*
 * Tokyo Cabinet: its B+ tree. Durable: after each call what was changed is written to the file
 * and msync waits for it (tcbdbsync); a crash in between may tear it. Relaxed: it stays in
 * the store's own cache, as it comes.
 */
#include "driver.h"
#include <tcbdb.h>

struct store {
    TCBDB *tree;
    int durable;
};

static void check(const struct store *store, bool done, const char *what)
{
    if (!done)
        fail("%s: %s", what, tcbdberrmsg(tcbdbecode(store->tree)));
}

static void *store_open(const struct options *options)
{
    struct store *store = calloc(1, sizeof *store);
    if (!store || !(store->tree = tcbdbnew()))
        fail("no memory");
    store->durable = options->durable;
    char path[4096];
    path_in(options, "tree.tcb", path);
    check(store, tcbdbsetmutex(store->tree), "tcbdbsetmutex");
    check(store, tcbdbopen(store->tree, path, BDBOWRITER | BDBOCREAT), "tcbdbopen");
    return store;
}

static void store_close(void *argument)
{
    struct store *store = argument;
    check(store, tcbdbclose(store->tree), "tcbdbclose");
    tcbdbdel(store->tree);
    free(store);
}

static void *session_open(void *store)
{
    return store;
}

static void session_close(void *session)
{
    (void)session;
}

static void synchronise(struct store *store)
{
    if (store->durable)
        check(store, tcbdbsync(store->tree), "tcbdbsync");
}

static void session_insert(void *session, uint64_t key, const void *value, size_t bytes)
{
    struct store *store = session;
    check(store, tcbdbput(store->tree, &key, sizeof key, value, (int)bytes), "tcbdbput");
    synchronise(store);
}

static void session_delete(void *session, uint64_t key)
{
    struct store *store = session;
    check(store, tcbdbout(store->tree, &key, sizeof key), "tcbdbout");
    synchronise(store);
}

static int session_has(void *session, uint64_t key)
{
    struct store *store = session;
    return tcbdbvsiz(store->tree, &key, sizeof key) >= 0;
}
