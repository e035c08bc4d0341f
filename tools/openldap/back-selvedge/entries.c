/* Records of entries, paths to them, and children. */
#include "back-selvedge.h"

SELVEDGE_SAFE static void get_record(struct database *db, uint64_t id, struct record *record)
{
    uint64_t key = ordered(id);
    record->size = selvedge_tree_get(db->entries, &key, sizeof key, record->bytes, record->room);
}

bool fits(struct record *record)
{
    if (record->size <= (ssize_t)record->room)
        return true;
    record->room = record->size;
    record->bytes = ch_realloc(record->bytes, record->room);
    return false;
}

int encode(Entry *e, struct berval *record)
{
    Entry unnamed = *e;
    unnamed.e_name = unnamed.e_nname = slap_empty_bv;
    entry_encode(&unnamed, record);
    return record->bv_len > MOST_RECORD ? LDAP_ADMINLIMIT_EXCEEDED : LDAP_SUCCESS;
}

Entry *decode(const struct record *record, ID id, const struct berval *dn,
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

void begin(struct path *path)
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

Entry *find(Operation *op, const struct berval *ndn, struct path *path)
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

bool is_found(const struct path *path) { return path->found == path->count; }

void forget(struct path *path)
{
    ch_free(path->steps);
    ch_free(path->record.bytes);
}

Entry *read_entry(Operation *op, const struct berval *ndn)
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

SELVEDGE_SAFE bool next_child(struct database *db, uint64_t parent, bool is_first,
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

bool has_children(struct database *db, uint64_t id)
{
    struct child child;
    child.record.bytes = NULL;
    bool is_there = false;
    patomic { is_there = next_child(db, id, true, &child); }
    return is_there;
}
