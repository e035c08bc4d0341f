/* A program whose process maps the store. Handlers of signals make calls on the store, also while other calls
 * run; then it makes a stray store into the store. The argument names the directory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            printf("%d: %s\n", __LINE__, #condition);                                 \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

enum { SIZE = 64 << 10, ALARMS = 50 };

static int of_handler;
static volatile sig_atomic_t handled;
/* Both threads have handlers, and these use one file. */
static int in_handler;

static void on_alarm(int signal)
{
    char written[64], read[64];
    (void)signal;
    if (__atomic_exchange_n(&in_handler, 1, __ATOMIC_ACQUIRE))
        return;
    memset(written, 'a' + handled % 26, sizeof written);
    CHECK(pwrite(of_handler, written, sizeof written, 0) == sizeof written);
    CHECK(pread(of_handler, read, sizeof read, 0) == sizeof read);
    CHECK(memcmp(written, read, sizeof read) == 0);
    handled = handled + 1;
    __atomic_store_n(&in_handler, 0, __ATOMIC_RELEASE);
}

static void on_segv(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    static char end[64];
    int len = snprintf(end, sizeof end, "code %d, %s\n", info->si_code, handled ? "handled" : "not handled");
    (void)!write(1, end, len);
    _exit(0);
}

static void *overwrite(void *name)
{
    static __thread char written[SIZE], read[SIZE];
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0);
    for (int n = 0; handled < ALARMS; n++) {
        memset(written, n, SIZE);
        CHECK(pwrite(fd, written, SIZE, 0) == SIZE);
        CHECK(pread(fd, read, SIZE, 0) == SIZE && memcmp(written, read, SIZE) == 0);
    }
    CHECK(close(fd) == 0);
    return NULL;
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

int main(int argc, char **argv)
{
    struct sigaction alarm = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct sigaction segv = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO};
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    pthread_t other;
    CHECK(argc == 2 && chdir(argv[1]) == 0);
    int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    if (key < 0) {
        puts("no protection keys");
        return 0;
    }
    CHECK(pkey_free(key) == 0);
    of_handler = open("of_handler", O_RDWR | O_CREAT, 0600);
    CHECK(of_handler >= 0);
    CHECK(sigaction(SIGALRM, &alarm, NULL) == 0 && sigaction(SIGSEGV, &segv, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    CHECK(pthread_create(&other, NULL, overwrite, "other") == 0);
    overwrite("own");
    CHECK(pthread_join(other, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    CHECK(unlink("own") == 0 && unlink("other") == 0);
    volatile char *stray = memory_for_stores();
    *stray = *stray;
    puts("survived");
    return 0;
}
