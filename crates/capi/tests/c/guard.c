/* Stray stores into a store that the process maps, by each kind of thread. The argument names the socket. Each
 * kind of thread first uses the store; the stray store would not change a byte. */
#define _GNU_SOURCE
#include <selvedge/files.h>
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SURVIVED = 0, PAGE_PROTECTED = 100 + SEGV_ACCERR, KEY_PROTECTED = 100 + SEGV_PKUERR };

static const char *socket_name;
static selvedge_store *store;
static selvedge_kv *kv;

static void on_segv(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    _exit(100 + info->si_code);
}

/* The first page that the process may store to, as far as the list of mappings says. */
static volatile char *memory_for_stores(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    char line[512];
    uintptr_t start = 0;
    while (start == 0 && fgets(line, sizeof line, maps) != NULL)
        if (strstr(line, " rw-s ") != NULL && strstr(line, "/image\n") != NULL)
            start = strtoul(line, NULL, 16);
    fclose(maps);
    CHECK(start != 0);
    return (volatile char *)start;
}

static void store_same(volatile char *at)
{
    *at = *at;
}

static void is_value(const void *value, size_t len, void *argument)
{
    const char *expected = argument;
    CHECK(len == 4096);
    CHECK(((const char *)value)[0] == *expected && ((const char *)value)[4095] == *expected);
}

static void stores_same(const void *value, size_t len, void *argument)
{
    (void)argument;
    CHECK(len == 4096);
    store_same((volatile char *)value);
}

/* Puts, gets and borrows a value. */
static void use(void)
{
    static char value[4096], found[4096];
    memset(value, 'v', sizeof value);
    CHECK(selvedge_kv_put(kv, "key", 3, value, sizeof value) == 0);
    CHECK(selvedge_kv_get(kv, "key", 3, found, sizeof found) == sizeof found);
    CHECK(memcmp(value, found, sizeof value) == 0);
    CHECK(selvedge_store_sync(store) == 0);
    CHECK(selvedge_kv_borrow(kv, "key", 3, is_value, value) == 0);
}

static void stray(void)
{
    use();
    store_same(memory_for_stores());
}

static void *thread(void *wait)
{
    if (wait != NULL)
        CHECK(pthread_barrier_wait(wait) <= 0);
    stray();
    return NULL;
}

static void connect_to_store(void)
{
    store = selvedge_store_connect(socket_name);
    CHECK(store != NULL);
    kv = selvedge_kv_open(store, "values", O_CREAT, 0644);
    CHECK(kv != NULL);
}

static void here(void)
{
    connect_to_store();
    stray();
}

static void in_a_newer_thread(void)
{
    pthread_t newer;
    connect_to_store();
    CHECK(pthread_create(&newer, NULL, thread, NULL) == 0);
    CHECK(pthread_join(newer, NULL) == 0);
}

static void in_an_older_thread(void)
{
    pthread_t older;
    pthread_barrier_t connected;
    CHECK(pthread_barrier_init(&connected, NULL, 2) == 0);
    CHECK(pthread_create(&older, NULL, thread, &connected) == 0);
    connect_to_store();
    CHECK(pthread_barrier_wait(&connected) <= 0);
    CHECK(pthread_join(older, NULL) == 0);
}

static void to_a_borrowed_value(void)
{
    connect_to_store();
    use();
    selvedge_kv_borrow(kv, "key", 3, stores_same, NULL);
}

/* The child has the mapping of its parent, though it cannot use the connection. */
static void in_a_child(void)
{
    connect_to_store();
    use();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        store_same(memory_for_stores());
        _exit(SURVIVED);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    _exit(WEXITSTATUS(status));
}

static void ends(const char *what, void (*run)(void), int expected)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct sigaction action = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO};
        CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
        run();
        _exit(SURVIVED);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != expected) {
        fprintf(stderr, "%s: status %#x, not %d\n", what, status, expected);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    socket_name = argv[1];
    setenv("SELVEDGE_GUARD", "off", 1);
    ends("without a guard", here, SURVIVED);
    unsetenv("SELVEDGE_GUARD");
    int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    if (key < 0) {
        puts("no protection keys");
        ends("without keys", here, SURVIVED);
        return 0;
    }
    pkey_free(key);
    ends("here", here, KEY_PROTECTED);
    ends("in a newer thread", in_a_newer_thread, KEY_PROTECTED);
    ends("in an older thread", in_an_older_thread, KEY_PROTECTED);
    ends("to a borrowed value", to_a_borrowed_value, PAGE_PROTECTED);
    ends("in a child", in_a_child, KEY_PROTECTED);
    return 0;
}
