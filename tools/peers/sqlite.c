/*
 * SQLite: a table by integer key, a write-ahead log, each call a transaction of its own, a
 * connection for each thread. Durable: synchronous=FULL, the log is synced at each commit.
 * Relaxed: synchronous=OFF.
 */
#include "driver.h"
#include <sqlite3.h>

struct store {
    char path[4096];
    int durable;
    sqlite3 *first;
};

struct session {
    sqlite3 *db;
    sqlite3_stmt *insert, *delete, *find;
};

static void check(sqlite3 *db, int result, int expected, const char *what)
{
    if (result != expected)
        fail("%s: %s", what, db ? sqlite3_errmsg(db) : sqlite3_errstr(result));
}

/* Tries again at once: SQLite's own waits are of milliseconds. */
static int busy(void *argument, int count)
{
    (void)argument;
    (void)count;
    sched_yield();
    return 1;
}

static void run(sqlite3 *db, const char *statement)
{
    check(db, sqlite3_exec(db, statement, NULL, NULL, NULL), SQLITE_OK, statement);
}

static sqlite3 *connect_to(const struct store *store)
{
    sqlite3 *db;
    check(NULL, sqlite3_open(store->path, &db), SQLITE_OK, "sqlite3_open");
    sqlite3_busy_handler(db, busy, NULL);
    run(db, "PRAGMA journal_mode=WAL");
    run(db, store->durable ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=OFF");
    return db;
}

static void *store_open(const struct options *options)
{
    struct store *store = calloc(1, sizeof *store);
    if (!store)
        fail("no memory");
    path_in(options, "table.db", store->path);
    store->durable = options->durable;
    store->first = connect_to(store);
    run(store->first, "CREATE TABLE entries (key INTEGER PRIMARY KEY, value BLOB NOT NULL)");
    return store;
}

static void store_close(void *argument)
{
    struct store *store = argument;
    check(store->first, sqlite3_close(store->first), SQLITE_OK, "sqlite3_close");
    free(store);
}

static sqlite3_stmt *prepare(sqlite3 *db, const char *text)
{
    sqlite3_stmt *statement;
    check(db, sqlite3_prepare_v2(db, text, -1, &statement, NULL), SQLITE_OK, text);
    return statement;
}

static void *session_open(void *store)
{
    struct session *session = calloc(1, sizeof *session);
    if (!session)
        fail("no memory");
    session->db = connect_to(store);
    session->insert = prepare(session->db, "INSERT INTO entries VALUES (?, ?)");
    session->delete = prepare(session->db, "DELETE FROM entries WHERE key = ?");
    session->find = prepare(session->db, "SELECT 1 FROM entries WHERE key = ?");
    return session;
}

static void session_close(void *argument)
{
    struct session *session = argument;
    sqlite3_finalize(session->insert);
    sqlite3_finalize(session->delete);
    sqlite3_finalize(session->find);
    check(session->db, sqlite3_close(session->db), SQLITE_OK, "sqlite3_close");
    free(session);
}

static void bind_key(struct session *session, sqlite3_stmt *statement, uint64_t key)
{
    int bound = sqlite3_bind_int64(statement, 1, (sqlite3_int64)key);
    check(session->db, bound, SQLITE_OK, "sqlite3_bind_int64");
}

static void finish(struct session *session, sqlite3_stmt *statement, const char *what)
{
    check(session->db, sqlite3_step(statement), SQLITE_DONE, what);
    check(session->db, sqlite3_reset(statement), SQLITE_OK, what);
}

static void session_insert(void *argument, uint64_t key, const void *value, size_t bytes)
{
    struct session *session = argument;
    bind_key(session, session->insert, key);
    int bound = sqlite3_bind_blob(session->insert, 2, value, (int)bytes, SQLITE_STATIC);
    check(session->db, bound, SQLITE_OK, "sqlite3_bind_blob");
    finish(session, session->insert, "INSERT");
}

static void session_delete(void *argument, uint64_t key)
{
    struct session *session = argument;
    bind_key(session, session->delete, key);
    finish(session, session->delete, "DELETE");
    if (sqlite3_changes(session->db) != 1)
        fail("DELETE: no such entry");
}

static int session_has(void *argument, uint64_t key)
{
    struct session *session = argument;
    bind_key(session, session->find, key);
    int result = sqlite3_step(session->find);
    if (result != SQLITE_ROW)
        check(session->db, result, SQLITE_DONE, "SELECT");
    sqlite3_reset(session->find);
    return result == SQLITE_ROW;
}
