/* The back end "selvedge" of OpenLDAP's slapd: entries in durable memory. `build` lists the features.
 *
 * Layout
 * ------
 * Each database has two B+ trees. `names` maps the number of an entry and the normalised RDN of a
 * child to the child's number and its RDN as written: the children of an entry are a range of
 * keys. `entries` maps a number to the attributes. So the move of a subtree removes one key and
 * adds one.
 *
 * Each update is one transaction, durable before its answer. Updates are serial, and check their
 * preconditions before the transaction. Readers wait for no lock. They see each entry, and the names
 * on the path to it, as of one time.
 *
 * Modules: entries.c (records, paths, children), reads.c, updates.c, start.c. */
#ifndef BACK_SELVEDGE_H
#define BACK_SELVEDGE_H

#include "portable.h"

#include "slap.h"

#include <selvedge/short.h>
#include <selvedge/structures.h>
#include <stdbool.h>
#include <string.h>

/* Bytes of a name, normalised or not; a longer one is refused. */
#define MOST_NAME SLAP_LDAPDN_MAXLEN
#define MOST_TEXT (4 * MOST_NAME)
/* Bytes of all attributes of an entry: a transaction must fit a log. */
#define MOST_RECORD (512 * 1024)
#define FIRST_RECORD 4096
#define KEY_BYTES sizeof(uint64_t)

/* A database in durable memory. */
struct home {
    uint64_t next; /* the number of the next new entry */
    selvedge_tree *names, *entries;
};

struct database {
    char *directory;
    struct home *home;
    selvedge_tree *names, *entries; /* those of home */
    ldap_pvt_thread_mutex_t turn;   /* held by updates */
};

/* A buffer for a record, which `fits` enlarges. */
struct record {
    char *bytes;
    size_t room;
    ssize_t size; /* -1: there is no record */
};

/* The names on the path from the suffix to an entry. */
struct path {
    unsigned count; /* the number of names */
    unsigned found; /* the number of names, from the suffix on, that have entries */
    struct step {
        struct berval nrdn;
        uint64_t id;
        size_t begin, size; /* the name as it was written, in `text` */
    } *steps;
    bool is_too_long;
    char text[MOST_TEXT];
    struct record record; /* of the last entry found */
};

/* A child of an entry. */
struct child {
    uint64_t id;
    char key[KEY_BYTES + MOST_NAME], value[KEY_BYTES + MOST_NAME];
    size_t key_size, value_size;
    struct record record;
};

/* --- Keys ------------------------------------------------------------------------------ */

/* A number whose bytes, compared by memcmp, have the order of numbers. */
SELVEDGE_SAFE static inline uint64_t ordered(uint64_t number) { return __builtin_bswap64(number); }

/* Makes the key of the child `name` of `parent`. Returns its size. */
SELVEDGE_SAFE static inline size_t make_key(char *key, uint64_t parent, const char *name, size_t size)
{
    uint64_t number = ordered(parent);
    memcpy(key, &number, KEY_BYTES);
    memcpy(key + KEY_BYTES, name, size);
    return KEY_BYTES + size;
}

/* --- Entries (entries.c) --------------------------------------------------------------- */

/* Whether the record was read completely. If not, enlarges the buffer for it. */
bool fits(struct record *record);

/* Encodes the attributes, without names: those are in the tree of names. Returns an LDAP code. */
int encode(Entry *e, struct berval *record);

Entry *decode(const struct record *record, ID id, const struct berval *dn, const struct berval *ndn);

/* Makes a path empty. Only the necessary fields are set, since a path is large. */
void begin(struct path *path);
void forget(struct path *path);

/* The last existing entry on the path to `ndn`, or NULL. */
Entry *find(Operation *op, const struct berval *ndn, struct path *path);
bool is_found(const struct path *path);

/* The entry of this name, or NULL. */
Entry *read_entry(Operation *op, const struct berval *ndn);

/* Moves to the first child of `parent` whose name follows that of `child`, or to the first of all.
 * Returns whether there is one. Reads its record too if `child` has a buffer for it. */
SELVEDGE_SAFE bool next_child(struct database *db, uint64_t parent, bool is_first,
                              struct child *child);
bool has_children(struct database *db, uint64_t id);

/* --- Reads (reads.c) ------------------------------------------------------------------- */

/* Reports a missing entry; `nearest` is the last existing one above it, or NULL. */
int note_missing(Operation *op, SlapReply *rs, Entry *nearest);

int back_search(Operation *op, SlapReply *rs);
int back_compare(Operation *op, SlapReply *rs);
int back_bind(Operation *op, SlapReply *rs);
int back_has_subordinates(Operation *op, Entry *e, int *has);
int back_operational(Operation *op, SlapReply *rs);
int back_entry_get(Operation *op, struct berval *ndn, ObjectClass *class,
                   AttributeDescription *attribute, int writes, Entry **found);
int back_entry_release(Operation *op, Entry *e, int writes);

/* --- Updates (updates.c) --------------------------------------------------------------- */

int back_add(Operation *op, SlapReply *rs);
int back_modify(Operation *op, SlapReply *rs);
int back_delete(Operation *op, SlapReply *rs);
int back_modrdn(Operation *op, SlapReply *rs);

#endif
