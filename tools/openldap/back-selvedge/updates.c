/* Operations that update: add, modify, delete, modrdn. */
#include "back-selvedge.h"

/* --- Changes of the trees -------------------------------------------------------------- */

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

/* --- Checks and answers ---------------------------------------------------------------- */

/* The answer to an update, besides its code. */
struct answer {
    char text[SLAP_TEXT_BUFLEN];
    LDAPControl *controls[SLAP_MAX_RESPONSE_CONTROLS];
    unsigned count;
};

typedef int update(Operation *op, SlapReply *rs, struct path *path, struct answer *answer);

/* Runs an update under the lock of updates, and answers. */
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
    /* After the unlock, since a client with the answer may begin an update. */
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

/* Reports that durable memory is full, or failed. */
static int deny_store(SlapReply *rs, const char *what)
{
    Debug(LDAP_DEBUG_ANY, "back-selvedge: %s: %s\n", what, selvedge_message());
    return deny(rs, LDAP_OTHER, "not stored");
}

/* Adds the current entry to the answer, if the client asked for it. */
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

/* Whether children of the entry `ndn` may be added or removed. NULL stands for the parent of a
 * suffix. */
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

/* Applies one change of a modification. */
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

/* Applies all changes of a modification, and checks the resulting entry. */
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

/* A copy of the entry to update, or NULL and the code of the answer. */
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

/* The new names of a moved entry, and the number of its new parent. */
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
    /* A normalised name may be longer. */
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

/* Renames an entry, with all entries below it. */
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

int back_add(Operation *op, SlapReply *rs) { return run(op, rs, add_entry); }
int back_modify(Operation *op, SlapReply *rs) { return run(op, rs, modify_entry); }
int back_delete(Operation *op, SlapReply *rs) { return run(op, rs, delete_entry); }
int back_modrdn(Operation *op, SlapReply *rs) { return run(op, rs, rename_entry); }
