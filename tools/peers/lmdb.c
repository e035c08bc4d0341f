/*
 * LMDB: its B+ tree, each call a transaction of its own. Durable: synced at each commit (the
 * default). Relaxed: MDB_NOSYNC.
 */
#include "driver.h"
#include <lmdb.h>

enum { SPARE_BYTES = 256 << 20, ENTRY_BYTES = 256 };

struct store {
    MDB_env *environment;
    MDB_dbi table;
};

static void check(int error, const char *what)
{
    if (error)
        fail("%s: %s", what, mdb_strerror(error));
}

static MDB_txn *begin(struct store *store, unsigned flags)
{
    MDB_txn *transaction;
    check(mdb_txn_begin(store->environment, NULL, flags, &transaction), "mdb_txn_begin");
    return transaction;
}

static void *store_open(const struct options *options)
{
    struct store *store = calloc(1, sizeof *store);
    if (!store)
        fail("no memory");
    check(mdb_env_create(&store->environment), "mdb_env_create");
    size_t entries = options->threads * (options->live + 1);
    size_t bytes = SPARE_BYTES + 4 * entries * (options->value_bytes + ENTRY_BYTES);
    check(mdb_env_set_mapsize(store->environment, bytes & ~(size_t)4095), "mdb_env_set_mapsize");
    unsigned flags = options->durable ? 0 : MDB_NOSYNC;
    check(mdb_env_open(store->environment, options->directory, flags, 0600), "mdb_env_open");
    MDB_txn *transaction = begin(store, 0);
    check(mdb_dbi_open(transaction, NULL, 0, &store->table), "mdb_dbi_open");
    check(mdb_txn_commit(transaction), "mdb_txn_commit");
    return store;
}

static void store_close(void *argument)
{
    struct store *store = argument;
    mdb_env_close(store->environment);
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

static void session_insert(void *session, uint64_t key, const void *value, size_t bytes)
{
    struct store *store = session;
    MDB_val name = { .mv_data = &key, .mv_size = sizeof key };
    MDB_val data = { .mv_data = (void *)(uintptr_t)value, .mv_size = bytes };
    MDB_txn *transaction = begin(store, 0);
    check(mdb_put(transaction, store->table, &name, &data, 0), "mdb_put");
    check(mdb_txn_commit(transaction), "mdb_txn_commit");
}

static void session_delete(void *session, uint64_t key)
{
    struct store *store = session;
    MDB_val name = { .mv_data = &key, .mv_size = sizeof key };
    MDB_txn *transaction = begin(store, 0);
    check(mdb_del(transaction, store->table, &name, NULL), "mdb_del");
    check(mdb_txn_commit(transaction), "mdb_txn_commit");
}

static int session_has(void *session, uint64_t key)
{
    struct store *store = session;
    MDB_val name = { .mv_data = &key, .mv_size = sizeof key }, data;
    MDB_txn *transaction = begin(store, MDB_RDONLY);
    int error = mdb_get(transaction, store->table, &name, &data);
    mdb_txn_abort(transaction);
    if (error != MDB_NOTFOUND)
        check(error, "mdb_get");
    return error == 0;
}
