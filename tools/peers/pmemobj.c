/*
 * PMDK's libpmemobj: a hash table in its transactions, with the shape of the one to which it is
 * compared. Its buckets are chains of nodes, and the transaction that links a node allocates it. It
 * is always durable: with PMEM_IS_PMEM_FORCE=1 it flushes any memory as if it were persistent.
 *
 * Its transactions are not isolated, so a lock for some buckets is held across each.
 */
#include "driver.h"
#include <libpmemobj.h>

enum { LOCKS = 1024, NODE_TYPE = 1, BUCKETS_TYPE = 2 };

struct node {
    PMEMoid next;
    uint64_t key;
    char value[];
};

struct root {
    uint64_t buckets;
    PMEMoid table;
};

struct store {
    PMEMobjpool *pool;
    uint64_t buckets;
    PMEMoid *table;
    struct {
        _Alignas(64) pthread_mutex_t mutex;
    } locks[LOCKS];
};

static void *store_open(const struct options *options)
{
    struct store *store = aligned_alloc(64, sizeof *store);
    if (!store)
        fail("no memory");
    for (unsigned n = 0; n < LOCKS; n++)
        pthread_mutex_init(&store->locks[n].mutex, NULL);
    /* No page is fetched while calls are timed. */
    int yes = 1;
    if (pmemobj_ctl_set(NULL, "prefault.at_create", &yes))
        fail("pmemobj_ctl_set: %s", pmemobj_errormsg());
    uint64_t entries = options->threads * (options->live + 1);
    store->buckets = 1;
    while (store->buckets < entries)
        store->buckets *= 2;
    size_t bytes = ((size_t)64 << 20) + store->buckets * sizeof(PMEMoid)
                   + 2 * entries * (options->value_bytes + 256);
    char path[4096];
    path_in(options, "pool", path);
    store->pool = pmemobj_create(path, "table", bytes, 0600);
    if (!store->pool)
        fail("pmemobj_create: %s", pmemobj_errormsg());
    PMEMoid root_oid = pmemobj_root(store->pool, sizeof(struct root));
    if (OID_IS_NULL(root_oid))
        fail("pmemobj_root: %s", pmemobj_errormsg());
    struct root *root = pmemobj_direct(root_oid);
    if (pmemobj_zalloc(store->pool, &root->table, store->buckets * sizeof(PMEMoid), BUCKETS_TYPE))
        fail("pmemobj_zalloc: %s", pmemobj_errormsg());
    root->buckets = store->buckets;
    pmemobj_persist(store->pool, &root->buckets, sizeof root->buckets);
    store->table = pmemobj_direct(root->table);
    return store;
}

static void store_close(void *argument)
{
    struct store *store = argument;
    pmemobj_close(store->pool);
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

/* Keys are well mixed. */
static PMEMoid *bucket_of(struct store *store, uint64_t key)
{
    return &store->table[key & (store->buckets - 1)];
}

static pthread_mutex_t *lock(struct store *store, uint64_t key)
{
    /* By the bucket: there may be fewer buckets than locks. */
    uint64_t bucket = key & (store->buckets - 1);
    pthread_mutex_t *mutex = &store->locks[bucket & (LOCKS - 1)].mutex;
    pthread_mutex_lock(mutex);
    return mutex;
}

/* The pointer to the node of a key, or the end of its chain. */
static PMEMoid *find(PMEMoid *link, uint64_t key)
{
    while (!OID_IS_NULL(*link)) {
        struct node *node = pmemobj_direct(*link);
        if (node->key == key)
            break;
        link = &node->next;
    }
    return link;
}

static void session_insert(void *session, uint64_t key, const void *value, size_t bytes)
{
    struct store *store = session;
    PMEMoid *bucket = bucket_of(store, key);
    pthread_mutex_t *mutex = lock(store, key);
    TX_BEGIN(store->pool) {
        if (!OID_IS_NULL(*find(bucket, key)))
            pmemobj_tx_abort(EEXIST);
        PMEMoid oid = pmemobj_tx_alloc(sizeof(struct node) + bytes, NODE_TYPE);
        struct node *node = pmemobj_direct(oid);
        node->next = *bucket;
        node->key = key;
        memcpy(node->value, value, bytes);
        pmemobj_tx_add_range_direct(bucket, sizeof *bucket);
        *bucket = oid;
    } TX_ONABORT {
        fail("insert: %s", pmemobj_errormsg());
    } TX_END
    pthread_mutex_unlock(mutex);
}

static void session_delete(void *session, uint64_t key)
{
    struct store *store = session;
    PMEMoid *bucket = bucket_of(store, key);
    pthread_mutex_t *mutex = lock(store, key);
    TX_BEGIN(store->pool) {
        PMEMoid *link = find(bucket, key);
        PMEMoid oid = *link;
        if (OID_IS_NULL(oid))
            pmemobj_tx_abort(ENOENT);
        pmemobj_tx_add_range_direct(link, sizeof *link);
        *link = ((struct node *)pmemobj_direct(oid))->next;
        pmemobj_tx_free(oid);
    } TX_ONABORT {
        fail("delete: %s", pmemobj_errormsg());
    } TX_END
    pthread_mutex_unlock(mutex);
}

static int session_has(void *session, uint64_t key)
{
    struct store *store = session;
    pthread_mutex_t *mutex = lock(store, key);
    int has = !OID_IS_NULL(*find(bucket_of(store, key), key));
    pthread_mutex_unlock(mutex);
    return has;
}
