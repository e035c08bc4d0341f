/* A client that records the entries an LDAP server must have kept.
 *
 *   client kill ROUNDS THREADS URI COMMAND...  runs the server COMMAND, kills it (-9) in the
 *                                              middle of updates, starts it again, and looks
 *                                              whether all is there that was acknowledged, and
 *                                              nothing else
 *   client bench URI THREADS ENTRIES PID       "ADDS ADD MODIFIES MODIFY SEARCHES SEARCH DELETES
 *                                              DELETE": how many per second, and the microseconds
 *                                              of processors that the server PID had for each
 *
 * The server has dc=test, whose cn=admin has the password "secret". */
#define _GNU_SOURCE
#include <ldap.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../client.h"

#define SUFFIX "dc=test"
#define PEOPLE 150  /* of each thread */
#define GROUPS 3    /* what they are below */
#define MOST_TEXT 20000
#define GROUP_ROOM 100 /* for the DN of a group */
#define DN_ROOM 200

/* A person is below one of the groups, and has a version: both are in its attributes, and a
 * text that follows from it. A group's name has a version, too. */
struct person {
    bool is_there;
    int group;
    unsigned version;
};

struct state {
    struct person people[PEOPLE];
    unsigned groups[GROUPS];
};

struct worker {
    pthread_t thread;
    int number;
    uint64_t seed;
    LDAP *ldap;
    struct state now, next; /* `next` is what there may be instead, of what we wait for */
    unsigned long done;
    /* The state that it found. */
    struct state found;
    int entries;
    /* Bench. */
    int first, count;
    char kind;
};

static const char *uri;

/* --- Talking --------------------------------------------------------------------------- */

static LDAP *reach(void)
{
    LDAP *ldap = NULL;
    int three = LDAP_VERSION3;
    struct berval password = {6, "secret"};
    if (ldap_initialize(&ldap, uri) != LDAP_SUCCESS)
        fail("%s is nowhere", uri);
    ldap_set_option(ldap, LDAP_OPT_PROTOCOL_VERSION, &three);
    ldap_set_option(ldap, LDAP_OPT_RESTART, LDAP_OPT_ON);
    if (ldap_sasl_bind_s(ldap, "cn=admin," SUFFIX, LDAP_SASL_SIMPLE, &password, NULL, NULL, NULL) == LDAP_SUCCESS)
        return ldap;
    ldap_unbind_ext_s(ldap, NULL, NULL);
    return NULL;
}

/* Whether the answer is the one that is due; false: the server is gone. */
static bool is_due(const char *what, const char *dn, int code, int due)
{
    if (code < 0 || code == LDAP_UNAVAILABLE)
        return false;
    if (code != due)
        fail("%s %s: %s", what, dn, ldap_err2string(code));
    return true;
}

/* Puts an attribute with one value into a list that ends with NULL. */
struct change {
    LDAPMod mod, *list[8];
    LDAPMod mods[7];
    struct berval values[7], *ends[7][2];
    int count;
};

static void put(struct change *change, int op, char *name, const char *value, size_t size)
{
    int n = change->count++;
    change->values[n] = (struct berval){size, (char *)value};
    change->ends[n][0] = &change->values[n];
    change->ends[n][1] = NULL;
    change->mods[n] = (LDAPMod){.mod_op = op | LDAP_MOD_BVALUES, .mod_type = name,
                                .mod_vals.modv_bvals = change->ends[n]};
    change->list[n] = &change->mods[n];
    change->list[n + 1] = NULL;
}

static void put_text(struct change *change, int op, char *name, const char *value)
{
    put(change, op, name, value, strlen(value));
}

static int add_unit(LDAP *ldap, const char *dn, const char *name)
{
    struct change change = {.count = 0};
    put_text(&change, LDAP_MOD_ADD, "objectClass", "organizationalUnit");
    put_text(&change, LDAP_MOD_ADD, "ou", name);
    return ldap_add_ext_s(ldap, dn, change.list, NULL, NULL);
}

/* --- People ---------------------------------------------------------------------------- */

static void name_group(const struct worker *w, int group, unsigned version, char *dn)
{
    snprintf(dn, GROUP_ROOM, "ou=g%d-%u,ou=t%d," SUFFIX, group, version, w->number);
}

static void name_person(const struct worker *w, int number, const struct state *state, char *dn)
{
    char group[GROUP_ROOM];
    int in = state->people[number].group;
    name_group(w, in, state->groups[in], group);
    snprintf(dn, DN_ROOM, "uid=p%d,%s", number, group);
}

/* Its length is another for each version. */
static size_t write_text(const struct worker *w, int number, unsigned version, char *text)
{
    uint64_t seed = ((uint64_t)version << 32 | (uint64_t)number << 8 | w->number) * 2654435761u + 88172645463325252u;
    size_t size = 1 + some(&seed, some(&seed, 20) ? 300 : MOST_TEXT);
    for (size_t n = 0; n < size; n++)
        text[n] = 'a' + (n % 16 ? (text[n - 1] + 5 - 'a') % 26 : some(&seed, 26));
    return size;
}

/* All that depends on the version. */
static void put_version(const struct worker *w, struct change *change, int op, int number,
                        unsigned version, char *text)
{
    static _Thread_local char name[20];
    snprintf(name, sizeof name, "v%u", version);
    put_text(change, op, "sn", name);
    put_text(change, op, "title", name);
    put(change, op, "description", text, write_text(w, number, version, text));
}

static int try_to_add(struct worker *w, int number, const char *dn, char *text)
{
    struct change change = {.count = 0};
    char name[20];
    snprintf(name, sizeof name, "p%d", number);
    put_text(&change, LDAP_MOD_ADD, "objectClass", "inetOrgPerson");
    put_text(&change, LDAP_MOD_ADD, "uid", name);
    put_text(&change, LDAP_MOD_ADD, "cn", name);
    put_version(w, &change, LDAP_MOD_ADD, number, w->next.people[number].version, text);
    return ldap_add_ext_s(w->ldap, dn, change.list, NULL, NULL);
}

static bool add_person(struct worker *w, int number, char *dn, char *text)
{
    struct person *next = &w->next.people[number];
    *next = (struct person){true, some(&w->seed, GROUPS), next->version + 1};
    name_person(w, number, &w->next, dn);
    return is_due("adding", dn, try_to_add(w, number, dn, text), LDAP_SUCCESS);
}

static bool change_person(struct worker *w, int number, char *dn, char *text)
{
    struct change change = {.count = 0};
    unsigned version = ++w->next.people[number].version;
    put_version(w, &change, LDAP_MOD_REPLACE, number, version, text);
    return is_due("modifying", dn, ldap_modify_ext_s(w->ldap, dn, change.list, NULL, NULL), LDAP_SUCCESS);
}

static bool move_person(struct worker *w, int number, char *dn)
{
    struct person *next = &w->next.people[number];
    char rdn[20], above[GROUP_ROOM];
    next->group = some(&w->seed, GROUPS);
    snprintf(rdn, sizeof rdn, "uid=p%d", number);
    name_group(w, next->group, w->next.groups[next->group], above);
    return is_due("moving", dn, ldap_rename_s(w->ldap, dn, rdn, above, 1, NULL, NULL), LDAP_SUCCESS);
}

static bool rename_group(struct worker *w, int group)
{
    char dn[DN_ROOM], rdn[20];
    name_group(w, group, w->now.groups[group], dn);
    snprintf(rdn, sizeof rdn, "ou=g%d-%u", group, ++w->next.groups[group]);
    return is_due("renaming", dn, ldap_rename_s(w->ldap, dn, rdn, NULL, 1, NULL, NULL), LDAP_SUCCESS);
}

/* Requests that must be refused. */
static bool try_wrong(struct worker *w, int number, const char *dn, char *text)
{
    char unit[DN_ROOM];
    snprintf(unit, sizeof unit, "ou=t%d," SUFFIX, w->number);
    if (!is_due("deleting", unit, ldap_delete_ext_s(w->ldap, unit, NULL, NULL), LDAP_NOT_ALLOWED_ON_NONLEAF))
        return false;
    if (w->now.people[number].is_there)
        return is_due("adding", dn, try_to_add(w, number, dn, text), LDAP_ALREADY_EXISTS);
    return is_due("deleting", dn, ldap_delete_ext_s(w->ldap, dn, NULL, NULL), LDAP_NO_SUCH_OBJECT);
}

static bool change(struct worker *w, char *text)
{
    int number = some(&w->seed, PEOPLE);
    bool is_there = w->now.people[number].is_there, is_done;
    char dn[DN_ROOM];
    name_person(w, number, &w->now, dn);
    switch (some(&w->seed, 10)) {
    case 0:
        is_done = rename_group(w, some(&w->seed, GROUPS));
        break;
    case 1:
        is_done = try_wrong(w, number, dn, text);
        break;
    case 2:
    case 3:
        if (is_there) {
            is_done = is_due("deleting", dn, ldap_delete_ext_s(w->ldap, dn, NULL, NULL), LDAP_SUCCESS);
            w->next.people[number].is_there = false;
            break;
        } /* fall through */
    case 4:
    case 5:
        if (is_there) {
            is_done = move_person(w, number, dn);
            break;
        } /* fall through */
    default:
        is_done = is_there ? change_person(w, number, dn, text) : add_person(w, number, dn, text);
    }
    if (is_done)
        w->now = w->next;
    return is_done;
}

static void *worker_main(void *argument)
{
    struct worker *w = argument;
    char text[MOST_TEXT];
    w->next = w->now;
    for (w->done = 0; change(w, text); w->done++)
        ;
    return NULL;
}

/* --- What is left ---------------------------------------------------------------------- */

static bool is_value(LDAP *ldap, LDAPMessage *entry, const char *name, const char *value, size_t size)
{
    struct berval **values = ldap_get_values_len(ldap, entry, name);
    bool is_it = values != NULL && values[0] != NULL && values[1] == NULL
                 && values[0]->bv_len == size && memcmp(values[0]->bv_val, value, size) == 0;
    ldap_value_free_len(values);
    return is_it;
}

/* Takes an entry into `found`, and checks that it is whole. */
static void take(struct worker *w, LDAPMessage *entry, char *text)
{
    char *dn = ldap_get_dn(w->ldap, entry), name[20], expected[DN_ROOM];
    int number, group, end = 0;
    unsigned version, group_version;
    struct state *found = &w->found;
    struct berval **values = ldap_get_values_len(w->ldap, entry, "sn");
    if (sscanf(dn, "uid=p%d,ou=g%d-%u,%n", &number, &group, &group_version, &end) == 3 && end > 0) {
        if (number < 0 || number >= PEOPLE || group < 0 || group >= GROUPS || found->people[number].is_there)
            fail("%s is too much", dn);
        if (values == NULL || sscanf(values[0]->bv_val, "v%u", &version) != 1)
            fail("%s has no version", dn);
        snprintf(name, sizeof name, "v%u", version);
        if (!is_value(w->ldap, entry, "title", name, strlen(name))
            || !is_value(w->ldap, entry, "description", text, write_text(w, number, version, text)))
            fail("%s is not whole: version %u", dn, version);
        found->people[number] = (struct person){true, group, version};
        snprintf(name, sizeof name, "p%d", number);
        if (!is_value(w->ldap, entry, "uid", name, strlen(name)))
            fail("%s has another uid", dn);
        /* Groups come before what is below them. */
        name_person(w, number, found, expected);
    } else if (sscanf(dn, "ou=g%d-%u,%n", &group, &group_version, &end) == 2 && end > 0) {
        if (group < 0 || group >= GROUPS || found->groups[group] != 0)
            fail("%s is too much", dn);
        found->groups[group] = group_version;
        name_group(w, group, group_version, expected);
        snprintf(name, sizeof name, "g%d-%u", group, group_version);
        if (!is_value(w->ldap, entry, "ou", name, strlen(name)))
            fail("%s has another ou", dn);
    } else
        snprintf(expected, sizeof expected, "ou=t%d," SUFFIX, w->number);
    if (strcmp(dn, expected) != 0)
        fail("%s is there, not %s", dn, expected);
    ldap_value_free_len(values);
    ldap_memfree(dn);
    w->entries++;
}

static bool is_same(const struct person *one, const struct person *other)
{
    return one->is_there == other->is_there
           && (!one->is_there || (one->group == other->group && one->version == other->version));
}

/* Whether all that was found is as expected. */
static bool is_as(struct worker *w, const struct state *expected, char *what)
{
    for (int n = 0; n < GROUPS; n++)
        if (w->found.groups[n] != expected->groups[n]) {
            sprintf(what, "group %d has version %u, not %u", n, w->found.groups[n], expected->groups[n]);
            return false;
        }
    for (int n = 0; n < PEOPLE; n++) {
        struct person *one = &w->found.people[n];
        const struct person *other = &expected->people[n];
        if (!is_same(one, other)) {
            sprintf(what, "p%d is %s in group %d with version %u, and was %s in %d with %u", n,
                    one->is_there ? "there" : "gone", one->group, one->version,
                    other->is_there ? "there" : "gone", other->group, other->version);
            return false;
        }
    }
    return true;
}

static void check(struct worker *w)
{
    char unit[DN_ROOM], what[200], text[MOST_TEXT];
    LDAPMessage *result = NULL;
    snprintf(unit, sizeof unit, "ou=t%d," SUFFIX, w->number);
    memset(&w->found, 0, sizeof w->found);
    w->entries = 0;
    int code = ldap_search_ext_s(w->ldap, unit, LDAP_SCOPE_SUBTREE, "(objectClass=*)", NULL, 0, NULL,
                                 NULL, NULL, LDAP_NO_LIMIT, &result);
    if (code != LDAP_SUCCESS)
        fail("searching %s: %s", unit, ldap_err2string(code));
    for (LDAPMessage *e = ldap_first_entry(w->ldap, result); e != NULL; e = ldap_next_entry(w->ldap, e))
        take(w, e, text);
    ldap_msgfree(result);
    if (!is_as(w, &w->now, what) && !is_as(w, &w->next, text))
        fail("of thread %d %s", w->number, what);
    for (int n = 0; n < PEOPLE; n++)
        if (!w->found.people[n].is_there)
            w->found.people[n].version = w->next.people[n].version;
    w->now = w->next = w->found;
}

/* --- Kill ------------------------------------------------------------------------------ */

static void start(char **command, struct worker *workers, int threads)
{
    server = fork();
    if (server == 0) {
        execvp(command[0], command);
        _exit(127);
    }
    double until = now() + 30;
    for (int n = 0; n < threads; n++)
        while ((workers[n].ldap = reach()) == NULL) {
            if (now() > until || waitpid(server, NULL, WNOHANG) != 0)
                fail("the server does not start");
            usleep(5000); /* there is no sign that it listens */
        }
}

static void end(struct worker *workers, int threads)
{
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    for (int n = 0; n < threads; n++) {
        if (workers[n].thread != 0)
            pthread_join(workers[n].thread, NULL);
        workers[n].thread = 0;
        ldap_unbind_ext_s(workers[n].ldap, NULL, NULL);
    }
}

/* Makes the entries above all others. */
static void make_units(struct worker *workers, int threads)
{
    struct change change = {.count = 0};
    put_text(&change, LDAP_MOD_ADD, "objectClass", "domain");
    put_text(&change, LDAP_MOD_ADD, "dc", "test");
    int code = ldap_add_ext_s(workers[0].ldap, SUFFIX, change.list, NULL, NULL);
    is_due("adding", SUFFIX, code, LDAP_SUCCESS);
    for (int n = 0; n < threads; n++) {
        struct worker *w = &workers[n];
        char dn[DN_ROOM], name[20];
        snprintf(name, sizeof name, "t%d", n);
        snprintf(dn, sizeof dn, "ou=%s," SUFFIX, name);
        is_due("adding", dn, add_unit(w->ldap, dn, name), LDAP_SUCCESS);
        for (int group = 0; group < GROUPS; group++) {
            w->now.groups[group] = 1;
            name_group(w, group, 1, dn);
            snprintf(name, sizeof name, "g%d-1", group);
            is_due("adding", dn, add_unit(w->ldap, dn, name), LDAP_SUCCESS);
        }
        w->next = w->now;
    }
}

static int run_kill(int rounds, int threads, char **command)
{
    struct worker *workers = calloc(threads, sizeof *workers);
    uint64_t seed = time(NULL) * 2654435761u | 1;
    unsigned long updates = 0;
    int entries = 0;
    printf("seed %llu\n", (unsigned long long)seed);
    for (int n = 0; n < threads; n++)
        workers[n].number = n, workers[n].seed = seed + n * 1000003;
    for (int round = 0; round <= rounds; round++) {
        start(command, workers, threads);
        if (round == 0)
            make_units(workers, threads);
        entries = 0;
        for (int n = 0; n < threads; n++) {
            check(&workers[n]);
            entries += workers[n].entries;
        }
        if (round < rounds) {
            for (int n = 0; n < threads; n++)
                pthread_create(&workers[n].thread, NULL, worker_main, &workers[n]);
            usleep(50000 + some(&seed, 500000)); /* until it is killed, wherever it is */
        }
        end(workers, threads);
        for (int n = 0; n < threads; n++)
            updates += round < rounds ? workers[n].done : 0;
    }
    printf("%d kills, %lu updates, %d entries at the end\n", rounds, updates, entries);
    return 0;
}

/* --- Bench ----------------------------------------------------------------------------- */

static void *bench_main(void *argument)
{
    struct worker *w = argument;
    for (int n = w->first; n < w->first + w->count; n++) {
        char dn[DN_ROOM], name[20], mail[40];
        struct change change = {.count = 0};
        LDAPMessage *result = NULL;
        int code;
        snprintf(name, sizeof name, "p%d", n);
        snprintf(mail, sizeof mail, "%s@example.org", name);
        snprintf(dn, sizeof dn, "uid=%s," SUFFIX, name);
        switch (w->kind) {
        case 'a':
            put_text(&change, LDAP_MOD_ADD, "objectClass", "inetOrgPerson");
            put_text(&change, LDAP_MOD_ADD, "uid", name);
            put_text(&change, LDAP_MOD_ADD, "cn", name);
            put_text(&change, LDAP_MOD_ADD, "sn", name);
            put_text(&change, LDAP_MOD_ADD, "mail", mail);
            put_text(&change, LDAP_MOD_ADD, "telephoneNumber", "+49 30 1234567");
            code = ldap_add_ext_s(w->ldap, dn, change.list, NULL, NULL);
            break;
        case 'm':
            put_text(&change, LDAP_MOD_REPLACE, "telephoneNumber", "+49 30 7654321");
            code = ldap_modify_ext_s(w->ldap, dn, change.list, NULL, NULL);
            break;
        case 's':
            code = ldap_search_ext_s(w->ldap, dn, LDAP_SCOPE_BASE, "(objectClass=*)", NULL, 0, NULL,
                                     NULL, NULL, LDAP_NO_LIMIT, &result);
            if (code == LDAP_SUCCESS && ldap_count_entries(w->ldap, result) != 1)
                fail("%s is not there", dn);
            ldap_msgfree(result);
            break;
        default:
            code = ldap_delete_ext_s(w->ldap, dn, NULL, NULL);
        }
        if (code != LDAP_SUCCESS)
            fail("%c %s: %s", w->kind, dn, ldap_err2string(code));
    }
    return NULL;
}

static int run_bench(int threads, int entries, pid_t program)
{
    struct worker *workers = calloc(threads, sizeof *workers);
    for (int n = 0; n < threads; n++)
        if ((workers[n].ldap = reach()) == NULL)
            fail("no server");
    struct change change = {.count = 0};
    put_text(&change, LDAP_MOD_ADD, "objectClass", "domain");
    put_text(&change, LDAP_MOD_ADD, "dc", "test");
    ldap_add_ext_s(workers[0].ldap, SUFFIX, change.list, NULL, NULL);
    for (const char *kind = "amsd"; *kind; kind++) {
        double began = now(), used = used_by(program);
        for (int n = 0; n < threads; n++) {
            workers[n].kind = *kind;
            workers[n].count = entries / threads;
            workers[n].first = n * workers[n].count;
            pthread_create(&workers[n].thread, NULL, bench_main, &workers[n]);
        }
        for (int n = 0; n < threads; n++)
            pthread_join(workers[n].thread, NULL);
        int done = entries / threads * threads;
        printf("%.0f %.0f%s", done / (now() - began), (used_by(program) - used) * 1e6 / done, kind[1] ? " " : "\n");
    }
    return 0;
}

int main(int count, char **words)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    if (count > 5 && strcmp(words[1], "kill") == 0) {
        uri = words[4];
        return run_kill(atoi(words[2]), atoi(words[3]), words + 5);
    }
    if (count == 6 && strcmp(words[1], "bench") == 0) {
        uri = words[2];
        return run_bench(atoi(words[3]), atoi(words[4]), atoi(words[5]));
    }
    fprintf(stderr, "client kill ROUNDS THREADS URI COMMAND...\nclient bench URI THREADS ENTRIES PID\n");
    return 64;
}
