/* Entries of OpenLDAP's slapd in durable memory: see build for what it does and what it does not.
 *
 * Layout
 * ------
 * Two B+ trees for each database. `names` leads from the number of an entry and the name of one
 * below it (the RDN, normalised) to that one's number, and its name as it was written: what is
 * below an entry is a range of keys. `entries` leads from a number to all attributes. So a
 * subtree that moves is one key removed and one added.
 *
 * Each update is one transaction, and durable when it is answered. Updates wait for each
 * other, and check what they need before that transaction; readers wait for nobody,
 * and see each entry, with the names that lead to it, as it was at one time. */
#include "portable.h"

#include "slap.h"
#include "slap-config.h"

#include <errno.h>
#include <selvedge/short.h>
#include <selvedge/structures.h>
#include <stdbool.h>
#include <string.h>

/* Bytes of a name, normalised or not; a longer one is refused. */
#define MOST_NAME SLAP_LDAPDN_MAXLEN
#define MOST_TEXT (4 * MOST_NAME)
/* Of all attributes of an entry: a transaction has to fit a log. */
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

/* --- Keys ------------------------------------------------------------------------------ */

/* Numbers are in the order of their bytes. */
SELVEDGE_SAFE static uint64_t ordered(uint64_t number) { return __builtin_bswap64(number); }

/* The key of what is called `name`, and is below `parent`. Its size. */
SELVEDGE_SAFE static size_t make_key(char *key, uint64_t parent, const char *name, size_t size)
{
    uint64_t number = ordered(parent);
    memcpy(key, &number, KEY_BYTES);
    memcpy(key + KEY_BYTES, name, size);
    return KEY_BYTES + size;
}

SELVEDGE_SAFE static int put_name(struct database *db, uint64_t parent, const struct berval *nrdn,
                                  uint64_t id, const struct berval *rdn)
{
    char key[KEY_BYTES + MOST_NAME], value[KEY_BYTES + MOST_NAME];
    size_t size = make_key(key, parent, nrdn->bv_val, nrdn->bv_len);
    size_t value_size = make_key(value, id, rdn->bv_val, rdn->bv_len);
    return selvedge_tree_put(db->names, key, size, value, value_size);
}

SELVEDGE_SAFE static int remove_name(struct database *db, uint64_t parent, const struct berval *nrdn)
{
    char key[KEY_BYTES + MOST_NAME];
    return selvedge_tree_remove(db->names, key, make_key(key, parent, nrdn->bv_val, nrdn->bv_len));
}

SELVEDGE_SAFE static int put_record(struct database *db, uint64_t id, const struct berval *record)
{
    uint64_t key = ordered(id);
    return selvedge_tree_put(db->entries, &key, sizeof key, record->bv_val, record->bv_len);
}

SELVEDGE_SAFE static int remove_record(struct database *db, uint64_t id)
{
    uint64_t key = ordered(id);
    return selvedge_tree_remove(db->entries, &key, sizeof key);
}

/* --- Entries --------------------------------------------------------------------------- */

/* A buffer that fits in the end. */
struct record {
    char *bytes;
    size_t room;
    ssize_t size; /* -1: there is none */
};

SELVEDGE_SAFE static void get_record(struct database *db, uint64_t id, struct record *record)
{
    uint64_t key = ordered(id);
    record->size = selvedge_tree_get(db->entries, &key, sizeof key, record->bytes, record->room);
}

/* Whether it is all there; if not, there is room for it now. */
static bool fits(struct record *record)
{
    if (record->size <= (ssize_t)record->room)
        return true;
    record->room = record->size;
    record->bytes = ch_realloc(record->bytes, record->room);
    return false;
}

/* The attributes, without names: those are in the tree of names. */
static int encode(Entry *e, struct berval *record)
{
    Entry unnamed = *e;
    unnamed.e_name = unnamed.e_nname = slap_empty_bv;
    entry_encode(&unnamed, record);
    return record->bv_len > MOST_RECORD ? LDAP_ADMINLIMIT_EXCEEDED : LDAP_SUCCESS;
}

static Entry *decode(const struct record *record, ID id, const struct berval *dn,
                     const struct berval *ndn)
{
    EntryHeader header = {.bv = {record->size, record->bytes}};
    entry_header(&header);
    size_t behind = header.data - record->bytes, values = header.nvals * sizeof(struct berval);
    char *block = ch_malloc(values + record->size);
    memcpy(block + values, record->bytes, record->size);
    header.bv.bv_len = values + record->size;
    header.bv.bv_val = block;
    header.data = block + values + behind;
    Entry *e = NULL;
    if (entry_decode(&header, &e) != LDAP_SUCCESS)
        return NULL;
    e->e_id = id;
    ber_dupbv(&e->e_name, (struct berval *)dn);
    ber_dupbv(&e->e_nname, (struct berval *)ndn);
    return e;
}

/* The names that lead from the suffix to an entry. */
struct path {
    unsigned count; /* how many there are, of which there are entries: */
    unsigned found;
    struct step {
        struct berval nrdn;
        uint64_t id;
        size_t begin, size; /* the name as it was written, in `text` */
    } *steps;
    bool is_too_long;
    char text[MOST_TEXT];
    struct record record; /* of the last one that was found */
};

/* Not all of a path is set: it is long. */
static void begin(struct path *path)
{
    path->count = path->found = 0;
    path->steps = NULL;
    path->is_too_long = false;
    path->record = (struct record){NULL, 0, -1};
}

static bool split(BackendDB *be, const struct berval *ndn, struct path *path)
{
    const struct berval *suffix = &be->be_nsuffix[0];
    struct berval rest = *ndn, parent;
    unsigned count = 1;
    for (; rest.bv_len > suffix->bv_len; rest = parent, count++)
        dnParent(&rest, &parent);
    path->count = count;
    path->steps = ch_calloc(count, sizeof *path->steps);
    rest = *ndn;
    while (--count > 0) {
        dnParent(&rest, &parent);
        path->steps[count].nrdn = rest;
        path->steps[count].nrdn.bv_len = parent.bv_val - rest.bv_val - 1;
        rest = parent;
    }
    path->steps[0].nrdn = rest;
    return bvmatch(&rest, suffix);
}

SELVEDGE_SAFE static void follow(struct database *db, struct path *path)
{
    char key[KEY_BYTES + MOST_NAME], value[KEY_BYTES + MOST_NAME];
    uint64_t id = 0;
    size_t used = 0;
    path->is_too_long = false;
    path->record.size = -1;
    unsigned n;
    for (n = 0; n < path->count; n++) {
        struct step *step = &path->steps[n];
        size_t size = make_key(key, id, step->nrdn.bv_val, step->nrdn.bv_len);
        ssize_t got = selvedge_tree_get(db->names, key, size, value, sizeof value);
        if (got < (ssize_t)KEY_BYTES)
            break;
        uint64_t number;
        memcpy(&number, value, KEY_BYTES);
        id = ordered(number);
        step->id = id;
        step->begin = used;
        step->size = got - KEY_BYTES;
        used += step->size;
        if (used > MOST_TEXT) {
            path->is_too_long = true;
            break;
        }
        memcpy(path->text + step->begin, value + KEY_BYTES, step->size);
    }
    path->found = n;
    if (n > 0)
        get_record(db, id, &path->record);
}

/* The last entry that is found on the way to `ndn`, or NULL. */
static Entry *find(Operation *op, const struct berval *ndn, struct path *path)
{
    struct database *db = op->o_bd->be_private;
    begin(path);
    path->is_too_long = ndn->bv_len > MOST_NAME;
    if (path->is_too_long || !split(op->o_bd, ndn, path))
        return NULL;
    path->record.bytes = ch_malloc(path->record.room = FIRST_RECORD);
    do {
        patomic { follow(db, path); }
    } while (!fits(&path->record));
    if (path->found == 0 || path->record.size < 0 || path->is_too_long)
        return NULL;
    struct step *last = &path->steps[path->found - 1];
    struct berval dn = {0, NULL}, found = {0, last->nrdn.bv_val};
    found.bv_len = ndn->bv_val + ndn->bv_len - found.bv_val;
    for (struct step *step = last; step >= path->steps; step--)
        dn.bv_len += step->size + (step > path->steps);
    char *to = dn.bv_val = ch_malloc(dn.bv_len + 1);
    for (struct step *step = last; step >= path->steps; step--) {
        memcpy(to, path->text + step->begin, step->size);
        to += step->size;
        *to++ = step > path->steps ? ',' : 0;
    }
    Entry *e = decode(&path->record, last->id, &dn, &found);
    ch_free(dn.bv_val);
    return e;
}

static bool is_found(const struct path *path) { return path->found == path->count; }

static void forget(struct path *path)
{
    ch_free(path->steps);
    ch_free(path->record.bytes);
}

/* The entry of this name, or NULL. */
static Entry *read_entry(Operation *op, const struct berval *ndn)
{
    struct path path;
    Entry *e = find(op, ndn, &path);
    if (e != NULL && !is_found(&path)) {
        entry_free(e);
        e = NULL;
    }
    forget(&path);
    return e;
}

/* An entry below another. */
struct child {
    uint64_t id;
    char key[KEY_BYTES + MOST_NAME], value[KEY_BYTES + MOST_NAME];
    size_t key_size, value_size;
    struct record record;
};

/* Goes to the first child of `parent` whose name comes after the one that `child` has, or to the
 * first of all, and whether there is one. With its record, if there is a buffer for it. */
SELVEDGE_SAFE static bool next_child(struct database *db, uint64_t parent, bool is_first,
                                     struct child *child)
{
    char key[KEY_BYTES + MOST_NAME + 1];
    uint64_t number = ordered(parent), found;
    size_t size = make_key(key, parent, child->key + KEY_BYTES,
                           is_first ? 0 : child->key_size - KEY_BYTES);
    if (!is_first)
        key[size++] = 0;
    selvedge_entry at = {child->key, sizeof child->key, 0, child->value, sizeof child->value, 0};
    if (selvedge_tree_seek(db->names, key, size, &at) != 1 || at.key_size < KEY_BYTES
        || at.value_size < KEY_BYTES)
        return false;
    memcpy(&found, child->key, KEY_BYTES);
    if (found != number)
        return false;
    child->key_size = at.key_size;
    child->value_size = at.value_size;
    memcpy(&number, child->value, KEY_BYTES);
    child->id = ordered(number);
    if (child->record.bytes != NULL)
        get_record(db, child->id, &child->record);
    return true;
}

static bool has_children(struct database *db, uint64_t id)
{
    struct child child;
    child.record.bytes = NULL;
    bool is_there = false;
    patomic { is_there = next_child(db, id, true, &child); }
    return is_there;
}

/* --- Reading --------------------------------------------------------------------------- */

/* Reports a missing entry; `nearest` is the last existing one above it, or NULL. */
static int note_missing(Operation *op, SlapReply *rs, Entry *nearest)
{
    rs->sr_err = LDAP_NO_SUCH_OBJECT;
    if (nearest == NULL) {
        rs->sr_ref = referral_rewrite(default_referral, NULL, &op->o_req_dn, LDAP_SCOPE_DEFAULT);
        if (rs->sr_ref != NULL) {
            rs->sr_flags |= REP_REF_MUSTBEFREED;
            rs->sr_err = LDAP_REFERRAL;
        }
    } else if (access_allowed(op, nearest, slap_schema.si_ad_entry, NULL, ACL_DISCLOSE, NULL)) {
        rs->sr_matched = ch_strdup(nearest->e_dn);
        rs->sr_flags |= REP_MATCHED_MUSTBEFREED;
    }
    return rs->sr_err;
}

/* The entries below one that a search has not visited yet. */
struct level {
    uint64_t id;
    struct berval dn, ndn;
    struct berval after; /* the key of the last one that was looked at, or none */
    struct level *above;
};

static struct level *push(struct level *above, const Entry *e)
{
    struct level *level = ch_calloc(1, sizeof *level);
    level->id = e->e_id;
    level->above = above;
    ber_dupbv(&level->dn, (struct berval *)&e->e_name);
    ber_dupbv(&level->ndn, (struct berval *)&e->e_nname);
    return level;
}

static struct level *pop(struct level *level)
{
    struct level *above = level->above;
    ch_free(level->dn.bv_val);
    ch_free(level->ndn.bv_val);
    ch_free(level->after.bv_val);
    ch_free(level);
    return above;
}

/* The next entry of this level, or NULL. */
static Entry *next_entry(struct database *db, struct level *level, struct child *child)
{
    bool is_first = level->after.bv_val == NULL, is_there = false;
    if (!is_first) {
        memcpy(child->key, level->after.bv_val, level->after.bv_len);
        child->key_size = level->after.bv_len;
    }
    for (;;) {
        patomic { is_there = next_child(db, level->id, is_first, child); }
        if (!is_there)
            return NULL;
        if (fits(&child->record))
            break;
        /* The key is that of the one that did not fit. */
        is_first = level->after.bv_val == NULL;
        if (!is_first) {
            memcpy(child->key, level->after.bv_val, level->after.bv_len);
            child->key_size = level->after.bv_len;
        }
    }
    ch_free(level->after.bv_val);
    ber_mem2bv(child->key, child->key_size, 1, &level->after);
    struct berval rdn = {child->value_size - KEY_BYTES, child->value + KEY_BYTES}, dn;
    struct berval nrdn = {child->key_size - KEY_BYTES, child->key + KEY_BYTES}, ndn;
    build_new_dn(&dn, &level->dn, &rdn, NULL);
    build_new_dn(&ndn, &level->ndn, &nrdn, NULL);
    Entry *e = decode(&child->record, child->id, &dn, &ndn);
    ch_free(dn.bv_val);
    ch_free(ndn.bv_val);
    return e;
}

/* Sends an entry that matches. False: that was the last one. */
static bool send_match(Operation *op, SlapReply *rs, Entry *e)
{
    if (test_filter(op, e, op->ors_filter) != LDAP_COMPARE_TRUE)
        return true;
    rs->sr_entry = e;
    rs->sr_attrs = op->ors_attrs;
    rs->sr_operational_attrs = NULL;
    rs->sr_ctrls = NULL;
    rs->sr_flags = 0;
    int sent = send_search_entry(op, rs);
    rs->sr_entry = NULL;
    rs->sr_attrs = NULL;
    if (sent == LDAP_UNAVAILABLE)
        rs->sr_err = LDAP_OTHER;
    else
        rs->sr_err = sent == LDAP_SIZELIMIT_EXCEEDED || sent == LDAP_BUSY ? sent : LDAP_SUCCESS;
    return rs->sr_err == LDAP_SUCCESS;
}

/* Whether a search may look at one more. */
static bool may_go_on(Operation *op, SlapReply *rs, time_t stop, unsigned long seen)
{
    if (op->o_abandon)
        rs->sr_err = SLAPD_ABANDON;
    else if (slapd_shutdown)
        rs->sr_err = LDAP_UNAVAILABLE;
    else if (op->ors_tlimit != SLAP_NO_LIMIT && slap_get_time() > stop)
        rs->sr_err = LDAP_TIMELIMIT_EXCEEDED;
    else if (op->ors_limit != NULL && op->ors_limit->lms_s_unchecked != -1
             && seen > (unsigned long)op->ors_limit->lms_s_unchecked)
        rs->sr_err = LDAP_ADMINLIMIT_EXCEEDED;
    return rs->sr_err == LDAP_SUCCESS;
}

/* All that is below `base`: what is above comes first. */
static void search_below(Operation *op, SlapReply *rs, Entry *base)
{
    struct database *db = op->o_bd->be_private;
    struct child child = {.record = {ch_malloc(FIRST_RECORD), FIRST_RECORD, -1}};
    time_t stop = op->o_time + op->ors_tlimit;
    struct level *level = push(NULL, base);
    for (unsigned long seen = 1; level != NULL && may_go_on(op, rs, stop, seen); seen++) {
        Entry *e = next_entry(db, level, &child);
        if (e == NULL) {
            level = pop(level);
            continue;
        }
        bool goes_on = send_match(op, rs, e);
        if (goes_on && op->ors_scope != LDAP_SCOPE_ONELEVEL)
            level = push(level, e);
        entry_free(e);
        if (!goes_on)
            break;
    }
    while (level != NULL)
        level = pop(level);
    ch_free(child.record.bytes);
}

static int back_search(Operation *op, SlapReply *rs)
{
    struct path path;
    slap_mask_t mask;
    Entry *base = find(op, &op->o_req_ndn, &path);
    rs->sr_err = LDAP_SUCCESS;
    if (base == NULL || !is_found(&path))
        note_missing(op, rs, base);
    else if (!access_allowed_mask(op, base, slap_schema.si_ad_entry, NULL, ACL_SEARCH, NULL, &mask))
        rs->sr_err = ACL_GRANT(mask, ACL_DISCLOSE) ? LDAP_INSUFFICIENT_ACCESS : LDAP_NO_SUCH_OBJECT;
    else if (get_assert(op) && test_filter(op, base, get_assertion(op)) != LDAP_COMPARE_TRUE)
        rs->sr_err = LDAP_ASSERTION_FAILED;
    else {
        int scope = op->ors_scope;
        bool goes_on = scope != LDAP_SCOPE_BASE && scope != LDAP_SCOPE_SUBTREE;
        if ((goes_on || send_match(op, rs, base)) && scope != LDAP_SCOPE_BASE)
            search_below(op, rs, base);
    }
    send_ldap_result(op, rs);
    if (base != NULL)
        entry_free(base);
    forget(&path);
    return rs->sr_err;
}

static int back_compare(Operation *op, SlapReply *rs)
{
    struct path path;
    Entry *e = find(op, &op->o_req_ndn, &path);
    if (e == NULL || !is_found(&path))
        note_missing(op, rs, e);
    else
        rs->sr_err = slap_compare_entry(op, e, op->orc_ava);
    send_ldap_result(op, rs);
    if (e != NULL)
        entry_free(e);
    forget(&path);
    bool is_answer = rs->sr_err == LDAP_COMPARE_TRUE || rs->sr_err == LDAP_COMPARE_FALSE;
    return is_answer ? LDAP_SUCCESS : rs->sr_err;
}

/* The front end reports success; this reports failure. */
static int back_bind(Operation *op, SlapReply *rs)
{
    if (be_rootdn_bind(op, NULL) == LDAP_SUCCESS)
        return rs->sr_err = LDAP_SUCCESS;
    Entry *e = read_entry(op, &op->o_req_ndn);
    Attribute *password = NULL;
    if (e != NULL) {
        ber_dupbv(&op->orb_edn, &e->e_name);
        password = attr_find(e->e_attrs, slap_schema.si_ad_userPassword);
    }
    rs->sr_err = LDAP_INVALID_CREDENTIALS;
    if (op->orb_method != LDAP_AUTH_SIMPLE)
        rs->sr_err = LDAP_STRONG_AUTH_NOT_SUPPORTED;
    else if (password != NULL
             && slap_passwd_check(op, e, password, &op->orb_cred, &rs->sr_text) == 0)
        rs->sr_err = LDAP_SUCCESS;
    if (rs->sr_err != LDAP_SUCCESS)
        send_ldap_result(op, rs);
    if (e != NULL)
        entry_free(e);
    return rs->sr_err;
}

static int back_has_subordinates(Operation *op, Entry *e, int *has)
{
    bool is_there = has_children(op->o_bd->be_private, e->e_id);
    *has = is_there ? LDAP_COMPARE_TRUE : LDAP_COMPARE_FALSE;
    return LDAP_SUCCESS;
}

static int back_operational(Operation *op, SlapReply *rs)
{
    AttributeDescription *wanted = slap_schema.si_ad_hasSubordinates;
    Attribute **at = &rs->sr_operational_attrs;
    if (!SLAP_OPATTRS(rs->sr_attr_flags) && !ad_inlist(wanted, rs->sr_attrs))
        return LDAP_SUCCESS;
    for (; *at != NULL; at = &(*at)->a_next)
        if ((*at)->a_desc == wanted)
            return LDAP_SUCCESS;
    *at = slap_operational_hasSubordinate(has_children(op->o_bd->be_private, rs->sr_entry->e_id));
    return LDAP_SUCCESS;
}

static int back_entry_get(Operation *op, struct berval *ndn, ObjectClass *class,
                          AttributeDescription *attribute, int writes, Entry **found)
{
    Entry *e = read_entry(op, ndn);
    if (e == NULL)
        return LDAP_NO_SUCH_OBJECT;
    if ((class != NULL && !is_entry_objectclass(e, class, 0))
        || (attribute != NULL && attr_find(e->e_attrs, attribute) == NULL)) {
        entry_free(e);
        return LDAP_NO_SUCH_ATTRIBUTE;
    }
    *found = e;
    return LDAP_SUCCESS;
}

static int back_entry_release(Operation *op, Entry *e, int writes)
{
    entry_free(e);
    return LDAP_SUCCESS;
}

/* --- Updates --------------------------------------------------------------------------- */

/* The answer to an update, besides its code. */
struct answer {
    char text[SLAP_TEXT_BUFLEN];
    LDAPControl *controls[SLAP_MAX_RESPONSE_CONTROLS];
    unsigned count;
};

typedef int update(Operation *op, SlapReply *rs, struct path *path, struct answer *answer);

/* Does an update in its turn, and answers. */
static int run(Operation *op, SlapReply *rs, update *update)
{
    struct database *db = op->o_bd->be_private;
    struct answer answer;
    struct path path;
    answer.count = 0;
    memset(answer.controls, 0, sizeof answer.controls);
    begin(&path);
    rs->sr_text = NULL;
    ldap_pvt_thread_mutex_lock(&db->turn);
    rs->sr_err = update(op, rs, &path, &answer);
    ldap_pvt_thread_mutex_unlock(&db->turn);
    forget(&path);
    /* Not before that: a client with the answer may begin an update. */
    if (rs->sr_err == LDAP_SUCCESS && answer.count > 0)
        rs->sr_ctrls = answer.controls;
    send_ldap_result(op, rs);
    rs->sr_ctrls = NULL;
    slap_graduate_commit_csn(op);
    for (unsigned n = 0; n < answer.count; n++) {
        slap_sl_free(answer.controls[n]->ldctl_value.bv_val, op->o_tmpmemctx);
        slap_sl_free(answer.controls[n], op->o_tmpmemctx);
    }
    return rs->sr_err;
}

static int deny(SlapReply *rs, int code, const char *text)
{
    rs->sr_text = text;
    return code;
}

/* Memory that is full, or fails. */
static int deny_store(SlapReply *rs, const char *what)
{
    Debug(LDAP_DEBUG_ANY, "back-selvedge: %s: %s\n", what, selvedge_message());
    return deny(rs, LDAP_OTHER, "not stored");
}

/* Answers with the entry as it is now, if that was asked for. */
static int note_entry(Operation *op, SlapReply *rs, Entry *e, int asked, const struct berval *how,
                      struct answer *answer)
{
    if (!asked)
        return LDAP_SUCCESS;
    if (slap_read_controls(op, rs, e, how, &answer->controls[answer->count]) == LDAP_SUCCESS)
        answer->count++;
    else if (asked & SLAP_CONTROL_CRITICAL)
        return rs->sr_err != LDAP_SUCCESS ? rs->sr_err : LDAP_OTHER;
    return LDAP_SUCCESS;
}

static bool is_assertion_wrong(Operation *op, Entry *e)
{
    return get_assert(op) && test_filter(op, e, get_assertion(op)) != LDAP_COMPARE_TRUE;
}

/* Whether children of the entry of this name may be added or removed; of none, for what is the
 * whole of a database. */
static bool may_change_children(Operation *op, const struct berval *ndn, slap_access_t access)
{
    if (be_isroot(op))
        return true;
    bool is_top = ndn == NULL;
    Entry *e = is_top ? (Entry *)&slap_entry_root : read_entry(op, ndn);
    bool may = e != NULL && access_allowed(op, e, slap_schema.si_ad_children, NULL, access, NULL);
    if (e != NULL && !is_top)
        entry_free(e);
    return may;
}

static const struct berval *parent_of(Operation *op, struct berval *ndn, struct berval *parent)
{
    if (be_issuffix(op->o_bd, ndn))
        return NULL;
    dnParent(ndn, parent);
    return parent;
}

static int add_entry(Operation *op, SlapReply *rs, struct path *path, struct answer *answer)
{
    struct database *db = op->o_bd->be_private;
    Entry *e = op->ora_e;
    size_t room = sizeof answer->text;
    int code = entry_schema_check(op, e, NULL, get_relax(op), 1, NULL, &rs->sr_text, answer->text, room);
    if (code == LDAP_SUCCESS)
        code = slap_add_opattrs(op, &rs->sr_text, answer->text, room, 1);
    if (code != LDAP_SUCCESS)
        return code;
    if (is_assertion_wrong(op, e))
        return LDAP_ASSERTION_FAILED;

    Entry *nearest = find(op, &e->e_nname, path);
    if (path->is_too_long)
        code = deny(rs, LDAP_ADMINLIMIT_EXCEEDED, "the name is too long");
    else if (is_found(path))
        code = LDAP_ALREADY_EXISTS;
    else if (path->found + 1 < path->count)
        code = note_missing(op, rs, nearest);
    if (nearest != NULL)
        entry_free(nearest);
    if (code != LDAP_SUCCESS)
        return code;
    struct berval above;
    if (!may_change_children(op, parent_of(op, &e->e_nname, &above), ACL_WADD))
        return deny(rs, LDAP_INSUFFICIENT_ACCESS, "no write access to parent");
    if (!access_allowed(op, e, slap_schema.si_ad_entry, NULL, ACL_WADD, NULL))
        return deny(rs, LDAP_INSUFFICIENT_ACCESS, "no write access to entry");
    if (!acl_check_modlist(op, e, op->ora_modlist))
        return deny(rs, LDAP_INSUFFICIENT_ACCESS, "no write access to attribute");

    struct berval record, rdn = e->e_name, *nrdn = &path->steps[path->count - 1].nrdn;
    if (path->count > 1)
        dnRdn(&e->e_name, &rdn);
    if (rdn.bv_len > MOST_NAME)
        return deny(rs, LDAP_ADMINLIMIT_EXCEEDED, "the name is too long");
    uint64_t parent = path->count > 1 ? path->steps[path->count - 2].id : 0, id = 0;
    if ((code = encode(e, &record)) == LDAP_SUCCESS) {
        patomic {
            id = db->home->next;
            db->home->next = id + 1;
            if (put_name(db, parent, nrdn, id, &rdn) != 0 || put_record(db, id, &record) != 0)
                __transaction_cancel;
        }
        e->e_id = id;
        code = id != 0 ? note_entry(op, rs, e, op->o_postread, &slap_post_read_bv, answer)
                       : deny_store(rs, "add");
    } else
        deny(rs, code, "the entry is too large");
    ch_free(record.bv_val);
    return code;
}

/* Makes one change of a modification. */
static int apply(Operation *op, Entry *e, Modification mod, SlapReply *rs, struct answer *answer)
{
    int code, permissive = get_permissiveModify(op);
    const char **text = &rs->sr_text;
    size_t room = sizeof answer->text;
    switch (mod.sm_op) {
    case SLAP_MOD_ADD_IF_NOT_PRESENT:
        if (attr_find(e->e_attrs, mod.sm_desc) != NULL)
            return LDAP_SUCCESS;
        mod.sm_op = LDAP_MOD_ADD;
        return modify_add_values(e, &mod, permissive, text, answer->text, room);
    case LDAP_MOD_ADD:
        return modify_add_values(e, &mod, permissive, text, answer->text, room);
    case SLAP_MOD_SOFTADD:
        mod.sm_op = LDAP_MOD_ADD;
        code = modify_add_values(e, &mod, permissive, text, answer->text, room);
        return code == LDAP_TYPE_OR_VALUE_EXISTS ? LDAP_SUCCESS : code;
    case LDAP_MOD_DELETE:
        return modify_delete_values(e, &mod, permissive, text, answer->text, room);
    case SLAP_MOD_SOFTDEL:
        mod.sm_op = LDAP_MOD_DELETE;
        code = modify_delete_values(e, &mod, permissive, text, answer->text, room);
        return code == LDAP_NO_SUCH_ATTRIBUTE ? LDAP_SUCCESS : code;
    case LDAP_MOD_REPLACE:
        return modify_replace_values(e, &mod, permissive, text, answer->text, room);
    case LDAP_MOD_INCREMENT:
        return modify_increment_values(e, &mod, permissive, text, answer->text, room);
    default:
        return deny(rs, LDAP_OTHER, "no such modification");
    }
}

/* Makes all changes of a modification, and checks what comes of it. */
static int apply_all(Operation *op, Entry *e, Modifications *all, SlapReply *rs, struct answer *answer)
{
    if (!acl_check_modlist(op, e, all))
        return LDAP_INSUFFICIENT_ACCESS;
    Attribute *before = attrs_dup(e->e_attrs);
    int code = LDAP_SUCCESS;
    for (; all != NULL && code == LDAP_SUCCESS; all = all->sml_next) {
        code = apply(op, e, all->sml_mod, rs, answer);
        if (all->sml_desc == slap_schema.si_ad_objectClass)
            e->e_ocflags = 0;
    }
    if (code == LDAP_SUCCESS) {
        Attribute *structural = NULL;
        code = entry_schema_check(op, e, before, get_relax(op), 0, &structural, &rs->sr_text,
                                  answer->text, sizeof answer->text);
    }
    attrs_free(before);
    return code;
}

/* The entry that an update is about: a copy that can be changed, or NULL and the answer. */
static Entry *find_to_change(Operation *op, SlapReply *rs, struct path *path, struct answer *answer,
                             int *code)
{
    Entry *e = find(op, &op->o_req_ndn, path), *copy = NULL;
    if (e == NULL || !is_found(path))
        *code = note_missing(op, rs, e);
    else if (is_assertion_wrong(op, e))
        *code = LDAP_ASSERTION_FAILED;
    else {
        *code = note_entry(op, rs, e, op->o_preread, &slap_pre_read_bv, answer);
        if (*code == LDAP_SUCCESS)
            copy = entry_dup(e);
    }
    if (e != NULL)
        entry_free(e);
    return copy;
}

static int modify_entry(Operation *op, SlapReply *rs, struct path *path, struct answer *answer)
{
    struct database *db = op->o_bd->be_private;
    struct berval record = BER_BVNULL;
    int code;
    slap_mods_opattrs(op, &op->orm_modlist, 1);
    Entry *e = find_to_change(op, rs, path, answer, &code);
    if (e == NULL)
        return code;
    uint64_t id = e->e_id;
    code = apply_all(op, e, op->orm_modlist, rs, answer);
    if (code == LDAP_SUCCESS)
        code = note_entry(op, rs, e, op->o_postread, &slap_post_read_bv, answer);
    if (code == LDAP_SUCCESS && (code = encode(e, &record)) != LDAP_SUCCESS)
        deny(rs, code, "the entry is too large");
    if (code == LDAP_SUCCESS && put_record(db, id, &record) != 0)
        code = deny_store(rs, "modify");
    ch_free(record.bv_val);
    entry_free(e);
    return code;
}

static int delete_entry(Operation *op, SlapReply *rs, struct path *path, struct answer *answer)
{
    struct database *db = op->o_bd->be_private;
    int code;
    if (BER_BVISNULL(&op->o_csn)) {
        char buffer[LDAP_PVT_CSNSTR_BUFSIZE];
        struct berval csn = {sizeof buffer, buffer};
        slap_get_csn(op, &csn, 1);
    }
    Entry *e = find_to_change(op, rs, path, answer, &code);
    if (e == NULL)
        return code;
    uint64_t id = e->e_id;
    struct berval above;
    if (!may_change_children(op, parent_of(op, &op->o_req_ndn, &above), ACL_WDEL))
        code = deny(rs, LDAP_INSUFFICIENT_ACCESS, "no write access to parent");
    else if (!access_allowed(op, e, slap_schema.si_ad_entry, NULL, ACL_WDEL, NULL))
        code = deny(rs, LDAP_INSUFFICIENT_ACCESS, "no write access to entry");
    else if (has_children(db, id))
        code = deny(rs, LDAP_NOT_ALLOWED_ON_NONLEAF, "subordinate objects must be deleted first");
    entry_free(e);
    if (code != LDAP_SUCCESS)
        return code;

    bool is_done = false;
    uint64_t parent = path->count > 1 ? path->steps[path->count - 2].id : 0;
    struct berval *nrdn = &path->steps[path->count - 1].nrdn;
    patomic {
        is_done = remove_name(db, parent, nrdn) == 0 && remove_record(db, id) == 0;
        if (!is_done)
            __transaction_cancel;
    }
    return is_done ? LDAP_SUCCESS : deny_store(rs, "delete");
}

/* Where an entry is to be moved to: its names, and the number of what it will be below. */
struct target {
    struct berval dn, ndn;
    uint64_t parent;
};

static int find_target(Operation *op, SlapReply *rs, const Entry *e, const struct path *path,
                       struct target *target)
{
    struct berval dn, ndn;
    int code = LDAP_SUCCESS;
    struct berval *above = op->orr_nnewSup;
    dnParent((struct berval *)&e->e_name, &dn);
    dnParent((struct berval *)&e->e_nname, &ndn);
    target->parent = path->steps[path->count - 2].id;
    bool is_moved = above != NULL && !dn_match(above, &ndn);
    if (!may_change_children(op, &ndn, is_moved ? ACL_WDEL : ACL_WRITE))
        return deny(rs, LDAP_INSUFFICIENT_ACCESS, "no write access to parent's children");
    if (!access_allowed(op, (Entry *)e, slap_schema.si_ad_entry, NULL, ACL_WRITE, NULL))
        return deny(rs, LDAP_INSUFFICIENT_ACCESS, "no write access to old entry");
    Entry *superior = NULL;
    if (is_moved) {
        superior = dnIsSuffix(above, &e->e_nname) ? NULL : read_entry(op, above);
        if (superior == NULL)
            return deny(rs, LDAP_NO_SUCH_OBJECT, "new superior not found");
        if (!may_change_children(op, above, ACL_WADD))
            code = deny(rs, LDAP_INSUFFICIENT_ACCESS, "no write access to new superior's children");
        dn = superior->e_name;
        target->parent = superior->e_id;
    }
    build_new_dn(&target->dn, &dn, &op->orr_newrdn, NULL);
    if (superior != NULL)
        entry_free(superior);
    if (code == LDAP_SUCCESS)
        code = dnNormalize(0, NULL, NULL, &target->dn, &target->ndn, NULL);
    /* A name may be longer when it is normalised. */
    if (code == LDAP_SUCCESS && target->ndn.bv_len > MOST_NAME)
        code = deny(rs, LDAP_ADMINLIMIT_EXCEEDED, "the name is too long");
    if (code != LDAP_SUCCESS || dn_match(&target->ndn, &e->e_nname))
        return code;
    Entry *other = read_entry(op, &target->ndn);
    if (other == NULL)
        return LDAP_SUCCESS;
    entry_free(other);
    return LDAP_ALREADY_EXISTS;
}

/* Gives an entry, with all that is below it, another name. */
static int rename_entry(Operation *op, SlapReply *rs, struct path *path, struct answer *answer)
{
    struct database *db = op->o_bd->be_private;
    struct target target = {BER_BVNULL, BER_BVNULL, 0};
    struct berval record = BER_BVNULL, rdn, nrdn;
    int code;
    slap_mods_opattrs(op, &op->orr_modlist, 1);
    if (be_issuffix(op->o_bd, &op->o_req_ndn))
        return deny(rs, LDAP_NAMING_VIOLATION, "cannot rename suffix entry");
    Entry *e = find_to_change(op, rs, path, answer, &code);
    if (e == NULL)
        return code;
    uint64_t id = e->e_id;
    code = find_target(op, rs, e, path, &target);
    if (code == LDAP_SUCCESS) {
        ber_bvreplace(&e->e_name, &target.dn);
        ber_bvreplace(&e->e_nname, &target.ndn);
        code = apply_all(op, e, op->orr_modlist, rs, answer);
    }
    if (code == LDAP_SUCCESS)
        code = note_entry(op, rs, e, op->o_postread, &slap_post_read_bv, answer);
    if (code == LDAP_SUCCESS) {
        dnRdn(&target.dn, &rdn);
        dnRdn(&target.ndn, &nrdn);
        code = encode(e, &record);
        if (code != LDAP_SUCCESS || rdn.bv_len > MOST_NAME)
            code = deny(rs, LDAP_ADMINLIMIT_EXCEEDED, "the entry or its name is too large");
    }
    if (code == LDAP_SUCCESS) {
        bool is_done = false;
        struct step *steps = path->steps, *old = &steps[path->count - 1];
        uint64_t from = old[-1].id, to = target.parent;
        patomic {
            is_done = remove_name(db, from, &old->nrdn) == 0
                      && put_name(db, to, &nrdn, id, &rdn) == 0 && put_record(db, id, &record) == 0;
            if (!is_done)
                __transaction_cancel;
        }
        code = is_done ? LDAP_SUCCESS : deny_store(rs, "rename");
    }
    ch_free(record.bv_val);
    ch_free(target.dn.bv_val);
    ch_free(target.ndn.bv_val);
    entry_free(e);
    return code;
}

static int back_add(Operation *op, SlapReply *rs) { return run(op, rs, add_entry); }
static int back_modify(Operation *op, SlapReply *rs) { return run(op, rs, modify_entry); }
static int back_delete(Operation *op, SlapReply *rs) { return run(op, rs, delete_entry); }
static int back_modrdn(Operation *op, SlapReply *rs) { return run(op, rs, rename_entry); }

/* --- Start and end --------------------------------------------------------------------- */

/* Makes what a database has in durable memory, or finds it. */
static struct home *find_home(const struct berval *suffix)
{
    selvedge_tree *all = selvedge_tree_root("openldap");
    struct home *home = NULL;
    if (all == NULL)
        return NULL;
    patomic {
        struct home *found = NULL;
        if (selvedge_tree_get(all, suffix->bv_val, suffix->bv_len, &found, sizeof found) < 0) {
            found = selvedge_pcalloc(1, sizeof *found, NULL);
            if (found == NULL || selvedge_tree_create(&found->names) == NULL
                || selvedge_tree_create(&found->entries) == NULL
                || selvedge_tree_put(all, suffix->bv_val, suffix->bv_len, &found, sizeof found) != 0)
                __transaction_cancel;
            found->next = 1;
        }
        home = found;
    }
    return home;
}

/* One directory for the process. */
static const char *use_directory(const char *directory)
{
    static const char *used;
    const char *named = getenv("SELVEDGE_REGION_PATH");
    if (directory == NULL)
        directory = used != NULL ? used : named != NULL ? named : ".";
    if (used != NULL && strcmp(used, directory) != 0)
        return "another database has its directory elsewhere: all of slapd's must be in one";
    if (used == NULL && setenv("SELVEDGE_REGION_PATH", directory, 1) != 0)
        return "no memory";
    used = used != NULL ? used : ch_strdup(directory);
    return selvedge_start() == 0 ? NULL : selvedge_message();
}

static int back_db_open(BackendDB *be, ConfigReply *reply)
{
    struct database *db = be->be_private;
    const char *wrong = NULL;
    if (BER_BVISNULL(&be->be_nsuffix[0]) || BER_BVISEMPTY(&be->be_nsuffix[0]))
        wrong = "a suffix is needed, and not the empty one";
    else
        wrong = use_directory(db->directory);
    if (wrong == NULL && (db->home = find_home(&be->be_nsuffix[0])) == NULL)
        wrong = selvedge_message();
    if (wrong != NULL) {
        snprintf(reply->msg, sizeof reply->msg, "back-selvedge: %s", wrong);
        Debug(LDAP_DEBUG_ANY, "%s\n", reply->msg);
        return -1;
    }
    db->names = db->home->names;
    db->entries = db->home->entries;
    return 0;
}

static ConfigTable options[] = {
    {"directory", "dir", 2, 2, 0, ARG_STRING | ARG_OFFSET,
     (void *)offsetof(struct database, directory),
     "( OLcfgDbAt:0.1 NAME 'olcDbDirectory' "
     "DESC 'Directory for database content' "
     "EQUALITY caseIgnoreMatch "
     "SYNTAX OMsDirectoryString SINGLE-VALUE )", NULL, {0}},
    {NULL, NULL, 0, 0, 0, ARG_IGNORED, NULL, NULL, NULL, {0}},
};

static ConfigOCs classes[] = {
    {"( OLcfgCtOc:73.1 "
     "NAME 'olcSelvedgeConfig' "
     "DESC 'Database in durable memory' "
     "SUP olcDatabaseConfig "
     "MAY olcDbDirectory )",
     Cft_Database, options},
    {NULL, 0, NULL},
};

static int back_db_init(BackendDB *be, ConfigReply *reply)
{
    struct database *db = ch_calloc(1, sizeof *db);
    ldap_pvt_thread_mutex_init(&db->turn);
    be->be_private = db;
    be->be_cf_ocs = classes;
    SLAP_DBFLAGS(be) |= SLAP_DBFLAG_ONE_SUFFIX;
    return 0;
}

static int back_db_destroy(BackendDB *be, ConfigReply *reply)
{
    struct database *db = be->be_private;
    ldap_pvt_thread_mutex_destroy(&db->turn);
    ch_free(db->directory);
    ch_free(db);
    be->be_private = NULL;
    return 0;
}

static int selvedge_back_initialize(BackendInfo *bi)
{
    static char *controls[] = {
        LDAP_CONTROL_ASSERT, LDAP_CONTROL_MANAGEDSAIT, LDAP_CONTROL_PRE_READ,
        LDAP_CONTROL_POST_READ, LDAP_CONTROL_X_PERMISSIVE_MODIFY, NULL,
    };
    bi->bi_flags |= SLAP_BFLAG_INCREMENT;
    bi->bi_controls = controls;
    bi->bi_db_init = back_db_init;
    bi->bi_db_config = config_generic_wrapper;
    bi->bi_db_open = back_db_open;
    bi->bi_db_destroy = back_db_destroy;
    bi->bi_op_bind = back_bind;
    bi->bi_op_search = back_search;
    bi->bi_op_compare = back_compare;
    bi->bi_op_add = back_add;
    bi->bi_op_modify = back_modify;
    bi->bi_op_delete = back_delete;
    bi->bi_op_modrdn = back_modrdn;
    bi->bi_operational = back_operational;
    bi->bi_has_subordinates = back_has_subordinates;
    bi->bi_entry_get_rw = back_entry_get;
    bi->bi_entry_release_rw = back_entry_release;
    bi->bi_cf_ocs = classes;
    return config_register_schema(options, classes);
}

SLAP_BACKEND_INIT_MODULE(selvedge)
