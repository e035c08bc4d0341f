/* Operations that read: search, compare, bind. */
#include "back-selvedge.h"

int note_missing(Operation *op, SlapReply *rs, Entry *nearest)
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
    struct berval after; /* the key of the last visited entry, or none */
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
        /* The key is that of the entry that did not fit: start again after the last one. */
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

/* Sends the entry if it matches. Returns false if the search must stop. */
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

/* Whether a search may continue after `seen` entries. */
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

/* Searches all entries below `base`, parents before children. */
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
        bool continues = send_match(op, rs, e);
        if (continues && op->ors_scope != LDAP_SCOPE_ONELEVEL)
            level = push(level, e);
        entry_free(e);
        if (!continues)
            break;
    }
    while (level != NULL)
        level = pop(level);
    ch_free(child.record.bytes);
}

int back_search(Operation *op, SlapReply *rs)
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
        bool continues = scope != LDAP_SCOPE_BASE && scope != LDAP_SCOPE_SUBTREE;
        if ((continues || send_match(op, rs, base)) && scope != LDAP_SCOPE_BASE)
            search_below(op, rs, base);
    }
    send_ldap_result(op, rs);
    if (base != NULL)
        entry_free(base);
    forget(&path);
    return rs->sr_err;
}

int back_compare(Operation *op, SlapReply *rs)
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
int back_bind(Operation *op, SlapReply *rs)
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

int back_has_subordinates(Operation *op, Entry *e, int *has)
{
    bool is_there = has_children(op->o_bd->be_private, e->e_id);
    *has = is_there ? LDAP_COMPARE_TRUE : LDAP_COMPARE_FALSE;
    return LDAP_SUCCESS;
}

int back_operational(Operation *op, SlapReply *rs)
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

int back_entry_get(Operation *op, struct berval *ndn, ObjectClass *class,
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

int back_entry_release(Operation *op, Entry *e, int writes)
{
    entry_free(e);
    return LDAP_SUCCESS;
}
