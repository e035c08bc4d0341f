/*
 * RocksDB: its default table and write-ahead log, each call a write of its own. Durable:
 * sync=true. Relaxed: sync=false, the log is handed to the kernel.
 */
#include "driver.h"
#include <rocksdb/c.h>

struct store {
    rocksdb_t *db;
    rocksdb_options_t *options;
    rocksdb_writeoptions_t *write;
    rocksdb_readoptions_t *read;
};

static void check(char *error, const char *what)
{
    if (error)
        fail("%s: %s", what, error);
}

static void *store_open(const struct options *options)
{
    struct store *store = calloc(1, sizeof *store);
    if (!store)
        fail("no memory");
    char path[4096], *error = NULL;
    path_in(options, "table", path);
    store->options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(store->options, 1);
    store->write = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(store->write, (unsigned char)options->durable);
    store->read = rocksdb_readoptions_create();
    store->db = rocksdb_open(store->options, path, &error);
    check(error, "rocksdb_open");
    return store;
}

static void store_close(void *argument)
{
    struct store *store = argument;
    rocksdb_close(store->db);
    rocksdb_options_destroy(store->options);
    rocksdb_writeoptions_destroy(store->write);
    rocksdb_readoptions_destroy(store->read);
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
    char *error = NULL;
    rocksdb_put(store->db, store->write, (char *)&key, sizeof key, value, bytes, &error);
    check(error, "rocksdb_put");
}

static void session_delete(void *session, uint64_t key)
{
    struct store *store = session;
    char *error = NULL;
    rocksdb_delete(store->db, store->write, (char *)&key, sizeof key, &error);
    check(error, "rocksdb_delete");
}

static int session_has(void *session, uint64_t key)
{
    struct store *store = session;
    char *error = NULL;
    size_t bytes;
    char *value = rocksdb_get(store->db, store->read, (char *)&key, sizeof key, &bytes, &error);
    check(error, "rocksdb_get");
    rocksdb_free(value);
    return value != NULL;
}
