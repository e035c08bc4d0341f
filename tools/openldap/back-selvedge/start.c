/* Configuration, start and end of a database. */
#include "back-selvedge.h"

#include "slap-config.h"

/* Finds the database of a suffix in durable memory, or makes it. */
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

/* Selects the directory, one for the process. Returns an error message, or NULL. */
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
