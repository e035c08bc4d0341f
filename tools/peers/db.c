/*
 * Berkeley DB: its hash table, each call a transaction of its own. Durable: the log is
 * written and synced at each commit (the default). Relaxed: written, not synced
 * (DB_TXN_WRITE_NOSYNC), which on persistent memory would do.
 */
#include "driver.h"
#include <db.h>

enum { CACHE_BYTES = 256 << 20, LOG_BUFFER_BYTES = 4 << 20, LOCKS = 100000 };

struct store {
    DB_ENV *environment;
    DB *db;
};

static void check(int error, const char *what)
{
    if (error)
        fail("%s: %s", what, db_strerror(error));
}

static void *store_open(const struct options *options)
{
    struct store *store = calloc(1, sizeof *store);
    if (!store)
        fail("no memory");
    check(db_env_create(&store->environment, 0), "db_env_create");
    DB_ENV *environment = store->environment;
    check(environment->set_cachesize(environment, 0, CACHE_BYTES, 1), "set_cachesize");
    check(environment->set_lg_bsize(environment, LOG_BUFFER_BYTES), "set_lg_bsize");
    check(environment->set_lg_max(environment, 8 * LOG_BUFFER_BYTES), "set_lg_max");
    check(environment->set_lk_max_locks(environment, LOCKS), "set_lk_max_locks");
    check(environment->set_lk_max_objects(environment, LOCKS), "set_lk_max_objects");
    check(environment->set_lk_detect(environment, DB_LOCK_DEFAULT), "set_lk_detect");
    if (!options->durable)
        check(environment->set_flags(environment, DB_TXN_WRITE_NOSYNC, 1), "set_flags");
    u_int32_t parts = DB_INIT_TXN | DB_INIT_LOG | DB_INIT_LOCK | DB_INIT_MPOOL;
    u_int32_t how = DB_CREATE | DB_PRIVATE | DB_THREAD;
    check(environment->open(environment, options->directory, parts | how, 0600), "DB_ENV->open");
    check(db_create(&store->db, environment, 0), "db_create");
    DB *db = store->db;
    check(db->set_h_nelem(db, (u_int32_t)(options->threads * options->live)), "set_h_nelem");
    how = DB_CREATE | DB_AUTO_COMMIT | DB_THREAD;
    check(db->open(db, NULL, "table", NULL, DB_HASH, how, 0600), "DB->open");
    return store;
}

static void store_close(void *argument)
{
    struct store *store = argument;
    check(store->db->close(store->db, 0), "DB->close");
    check(store->environment->close(store->environment, 0), "DB_ENV->close");
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

static DBT dbt(const void *data, size_t bytes)
{
    DBT dbt = { .data = (void *)(uintptr_t)data, .size = (u_int32_t)bytes };
    return dbt;
}

static void session_insert(void *session, uint64_t key, const void *value, size_t bytes)
{
    DB *db = ((struct store *)session)->db;
    DBT name = dbt(&key, sizeof key), data = dbt(value, bytes);
    int error;
    do
        error = db->put(db, NULL, &name, &data, 0);
    while (error == DB_LOCK_DEADLOCK);
    check(error, "DB->put");
}

static void session_delete(void *session, uint64_t key)
{
    DB *db = ((struct store *)session)->db;
    DBT name = dbt(&key, sizeof key);
    int error;
    do
        error = db->del(db, NULL, &name, 0);
    while (error == DB_LOCK_DEADLOCK);
    check(error, "DB->del");
}

static int session_has(void *session, uint64_t key)
{
    DB *db = ((struct store *)session)->db;
    DBT name = dbt(&key, sizeof key);
    int error;
    do
        error = db->exists(db, NULL, &name, 0);
    while (error == DB_LOCK_DEADLOCK);
    if (error != DB_NOTFOUND)
        check(error, "DB->exists");
    return error == 0;
}
