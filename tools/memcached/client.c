/* A client that records the items a memcached must have kept.
 *
 *   client kill ROUNDS THREADS PORT COMMAND...   runs the server COMMAND, kills it (-9) in the
 *                                                middle of sets, deletes and counts, starts it
 *                                                again, and looks whether all is there that was
 *                                                acknowledged, and nothing else
 *   client move ...                              the same, but has slab pages moved all the time:
 *                                                items may get lost, and must not come back
 *   client restart ITEMS BYTES PORT COMMAND...   makes that many items, kills the server, and says how
 *                                                long the next one takes until it answers
 *   client bench PORT THREADS BYTES SECONDS PID  "CHANGES CHANGE GETS GET": how many per second,
 *                                                and the nanoseconds of processors that PID had
 *                                                for each. Changes: inserts, each with a delete
 *                                                of the oldest */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
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

#define KEYS 600 /* of each thread */
#define MOST_BYTES 700000
#define COUNTER KEYS
#define SECONDS_OFF 60 /* a busy machine's; a touch that is lost is thousands */

/* The possible state of a key. `cas` is 0 if we never received one. */
struct state {
    bool is_there;
    uint32_t version, length;
    time_t ends; /* 0: never */
    uint64_t cas;
};

struct worker {
    pthread_t thread;
    int number, port, socket;
    uint64_t seed;
    struct state now[KEYS + 1], next; /* `next` of `changing`, whose answer we wait for */
    int changing;
    uint64_t count, done;
    char *sent, *got;
    size_t got_bytes, got_used;
    char input[1 << 16];
    uint32_t bytes;
    double seconds;
    bool gets;
};

/* Slab pages are moved, which throws away items that find no other place. */
static bool moves;
static unsigned long long lost;
static volatile bool stop;
static uint32_t round_sizes;

/* --- Talking --------------------------------------------------------------------------- */

static int reach(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1, socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(socket_, (struct sockaddr *)&to, sizeof to) != 0) {
        close(socket_);
        return -1;
    }
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return socket_;
}

static bool put(struct worker *w, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t done = send(w->socket, bytes, size, MSG_NOSIGNAL);
        if (done <= 0)
            return false;
        bytes += done, size -= done;
    }
    return true;
}

/* Reads that many bytes, or (0) a line. False: the server has ended. */
static bool take(struct worker *w, char *to, size_t size)
{
    bool is_line = size == 0;
    for (size_t n = 0; is_line ? n < 512 : n < size; n++) {
        if (w->got_used == w->got_bytes) {
            ssize_t got = recv(w->socket, w->input, sizeof w->input, 0);
            if (got <= 0)
                return false;
            w->got_bytes = got, w->got_used = 0;
        }
        to[n] = w->input[w->got_used++];
        if (is_line && to[n] == '\n') {
            to[n > 0 ? n - 1 : 0] = 0;
            return true;
        }
    }
    return !is_line;
}

static void fill(char *to, uint32_t length, int thread, int key, uint32_t version)
{
    uint64_t seed = ((uint64_t)version << 32 | (uint64_t)key << 8 | thread) * 2654435761u + 88172645463325252u;
    for (uint32_t n = 0; n < length; n++)
        to[n] = n % 8 ? to[n - 1] + 7 : (char)some(&seed, 256);
}

/* Looks at a key: fills `to`, and w->got. */
static bool look(struct worker *w, int key, struct state *to, uint32_t *flags)
{
    char line[512];
    int size = snprintf(line, sizeof line, "mg t%d-%d s v f t c\r\n", w->number, key);
    *to = (struct state){0};
    if (!put(w, line, size) || !take(w, line, 0))
        return false;
    if (strcmp(line, "EN") == 0)
        return true;
    char ttl[32];
    unsigned long long cas;
    unsigned int length;
    if (sscanf(line, "VA %u s%*u f%u t%31s c%llu", &length, flags, ttl, &cas) != 4 || length > MOST_BYTES)
        fail("answered %s", line);
    if (!take(w, w->got, length + 2))
        return false;
    *to = (struct state){true, *flags, length, strcmp(ttl, "-1") ? time(NULL) + atol(ttl) : 0, cas};
    return true;
}

static bool is_as(struct worker *w, int key, const struct state *found, const struct state *expected)
{
    if (found->is_there != expected->is_there)
        return false;
    if (!found->is_there)
        return true;
    if (found->version != expected->version || found->length != expected->length
        || (expected->cas && !moves && found->cas != expected->cas) || !found->ends != !expected->ends
        || labs((long)(found->ends - expected->ends)) > SECONDS_OFF)
        return false;
    fill(w->sent, found->length, w->number, key, found->version);
    return memcmp(w->sent, w->got, found->length) == 0;
}

/* --- Kill ------------------------------------------------------------------------------ */

/* Counts the worker's counter by one. Returns false if the server is gone. */
static bool count_up(struct worker *w, char *line, size_t room)
{
    int size = snprintf(line, room, "ma t%d-count N0 J1 v\r\n", w->number);
    char value[512];
    if (!put(w, line, size) || !take(w, line, 0))
        return false;
    if (strncmp(line, "SERVER_ERROR", 12) == 0) /* no memory */
        return true;
    if (!take(w, value, 0))
        return false;
    uint64_t is = strtoull(value, NULL, 10);
    if (strncmp(line, "VA ", 3) != 0 || is != ++w->count)
        fail("counts %s %s instead of %llu", line, value, (unsigned long long)w->count);
    return true;
}

static bool delete(struct worker *w, int key, char *line, size_t room)
{
    int size = snprintf(line, room, "md t%d-%d\r\n", w->number, key);
    if (!put(w, line, size) || !take(w, line, 0))
        return false;
    bool was_there = w->now[key].is_there;
    if (strcmp(line, was_there ? "HD" : "NF") != 0 && (!moves || strcmp(line, "NF") != 0))
        fail("deletes %d-%d: %s", w->number, key, line);
    return true;
}

static bool touch(struct worker *w, int key, char *line, size_t room)
{
    w->next = w->now[key];
    w->next.ends = time(NULL) + 50000;
    int size = snprintf(line, room, "touch t%d-%d 50000\r\n", w->number, key);
    if (!put(w, line, size) || !take(w, line, 0))
        return false;
    if (moves && strcmp(line, "NOT_FOUND") == 0)
        w->next.is_there = false;
    else if (strcmp(line, "TOUCHED") != 0)
        fail("touches %d-%d: %s", w->number, key, line);
    return true;
}

static bool set(struct worker *w, int key, char *line, size_t room)
{
    struct state *was = &w->now[key];
    w->next.is_there = true;
    w->next.version = was->version + 1;
    /* Other sizes in each round: slab pages must change their class. */
    w->next.length = 1 + some(&w->seed, some(&w->seed, 8) ? 200 : round_sizes);
    if (some(&w->seed, moves ? 100 : 1000) == 0)
        w->next.length = MOST_BYTES - some(&w->seed, 100000);
    int ttl = some(&w->seed, 2) ? 0 : 100000;
    w->next.ends = ttl ? time(NULL) + ttl : 0;
    int size = snprintf(line, room, "ms t%d-%d %u F%u T%d c\r\n", w->number, key, w->next.length,
                        w->next.version, ttl);
    fill(w->sent, w->next.length, w->number, key, w->next.version);
    memcpy(w->sent + w->next.length, "\r\n", 2);
    if (!put(w, line, size) || !put(w, w->sent, w->next.length + 2) || !take(w, line, 0))
        return false;
    unsigned long long cas;
    if (sscanf(line, "HD c%llu", &cas) == 1)
        w->next.cas = cas;
    else if (strncmp(line, "SERVER_ERROR", 12) == 0) { /* no memory: the old value may be lost */
        struct state found;
        uint32_t flags;
        if (!look(w, key, &found, &flags))
            return false;
        if (found.is_there && !is_as(w, key, &found, was))
            fail("%d-%d has another value after a failed set", w->number, key);
        w->next = found;
    } else
        fail("sets %d-%d: %s", w->number, key, line);
    return true;
}

/* Makes one change, chosen by chance. Returns false if the server is gone. */
static bool change(struct worker *w)
{
    char line[512];
    if (moves && some(&w->seed, 500) == 0) { /* a page moves to any class */
        if (!put(w, "slabs reassign -1 0\r\n", 21) || !take(w, line, 0))
            return false;
    }
    int key = some(&w->seed, KEYS + KEYS / 8);
    if (moves)
        key %= KEYS;
    w->changing = key >= KEYS ? COUNTER : key;
    if (w->changing == COUNTER) {
        if (!count_up(w, line, sizeof line))
            return false;
        w->changing = -1;
        return true;
    }
    struct state *was = &w->now[key];
    w->next = (struct state){0};
    uint64_t what = some(&w->seed, 5);
    bool is_done = what == 0                    ? delete(w, key, line, sizeof line)
                   : what == 1 && was->is_there ? touch(w, key, line, sizeof line)
                                                : set(w, key, line, sizeof line);
    if (!is_done)
        return false;
    uint32_t version = was->version;
    *was = w->next;
    if (!was->is_there)
        was->version = version;
    w->changing = -1;
    return true;
}

static void *worker_main(void *argument)
{
    struct worker *w = argument;
    w->changing = -1;
    for (w->done = 0; change(w); w->done++)
        if (stop && w->changing < 0 && w->done % 64 == 63)
            break;
    return NULL;
}

/* All of the keys after a restart. How many there are. */
static unsigned check(struct worker *w)
{
    unsigned there = 0;
    for (int key = 0; key < KEYS; key++) {
        struct state found;
        uint32_t flags = 0;
        if (!look(w, key, &found, &flags))
            fail("the server is gone");
        there += found.is_there;
        uint32_t version = w->now[key].version;
        if (moves && !found.is_there && w->now[key].is_there)
            lost++;
        else if (!is_as(w, key, &found, &w->now[key])) {
            if (key != w->changing || !is_as(w, key, &found, &w->next))
                fail("key %d of %d: is %s version %u, %u bytes, cas %llu, ends %ld; should be %s %u, %u, %llu, %ld",
                     key, w->number, found.is_there ? "there," : "gone,", found.version, found.length,
                     (unsigned long long)found.cas, (long)found.ends, w->now[key].is_there ? "there," : "gone,",
                     version, w->now[key].length, (unsigned long long)w->now[key].cas, (long)w->now[key].ends);
        }
        w->now[key] = found;
        /* Numbers are never used again, also if nobody heard that they were. */
        w->now[key].version = found.version > version ? found.version : version + 1;
        if (found.is_there)
            w->now[key].version = found.version;
        if (key == w->changing && !found.is_there)
            w->now[key].version = version + 2;
    }
    char line[512], value[512];
    int size = snprintf(line, sizeof line, "mg t%d-count v\r\n", w->number);
    if (!put(w, line, size) || !take(w, line, 0))
        fail("the server is gone");
    uint64_t count = 0;
    if (strcmp(line, "EN") != 0) {
        if (!take(w, value, 0))
            fail("the server is gone");
        count = strtoull(value, NULL, 10);
        there++;
    }
    if (moves)
        count = w->count;
    bool may = w->changing == COUNTER && count == w->count + 1;
    /* The first one makes it, with the value 0. */
    if (count != w->count && !may)
        fail("counter of %d is %llu, not %llu", w->number, (unsigned long long)count, (unsigned long long)w->count);
    w->count = count;
    return there;
}

static unsigned long long stat(struct worker *w, const char *which, const char *name)
{
    char line[512], format[128];
    unsigned long long sum = 0, value;
    int size = snprintf(line, sizeof line, "stats%s\r\n", which);
    if (!put(w, line, size))
        fail("the server is gone");
    for (;;) {
        if (!take(w, line, 0))
            fail("the server is gone");
        if (strcmp(line, "END") == 0)
            return sum;
        char *at = strrchr(line, ':');
        at = at ? at + 1 : line + 5;
        snprintf(format, sizeof format, "%s %%llu", name);
        if (sscanf(at, format, &value) == 1)
            sum += value;
    }
}

static void start(char **command, struct worker *workers, int threads)
{
    server = fork();
    if (server == 0) {
        execvp(command[0], command);
        _exit(127);
    }
    for (int n = 0; n < threads; n++) {
        double until = now() + 30;
        while ((workers[n].socket = reach(workers[n].port)) < 0) {
            if (now() > until || waitpid(server, NULL, WNOHANG) != 0)
                fail("the server does not start");
            usleep(5000); /* there is no sign that it listens */
        }
        workers[n].got_bytes = workers[n].got_used = 0;
    }
}

static void end(struct worker *workers, int threads)
{
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    for (int n = 0; n < threads; n++) {
        pthread_join(workers[n].thread, NULL);
        close(workers[n].socket);
    }
}

/* Removes all items, and checks that they stay removed after a kill. Returns their number. */
static unsigned flush_all(struct worker *workers, int threads, char **command)
{
    start(command, workers, threads);
    unsigned there = 0;
    for (int n = 0; n < threads; n++)
        there += check(&workers[n]);
    char line[512];
    if (!put(&workers[0], "flush_all\r\n", 11) || !take(&workers[0], line, 0) || strcmp(line, "OK") != 0)
        fail("flush_all: %s", line);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    for (int n = 0; n < threads; n++)
        close(workers[n].socket);
    start(command, workers, threads);
    for (int n = 0; n < threads; n++) {
        struct state found;
        uint32_t flags;
        for (int key = 0; key < KEYS; key++)
            if (!look(&workers[n], key, &found, &flags) || found.is_there)
                fail("key %d of %d is there after flush_all", key, n);
    }
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    return there;
}

static int run_kill(int rounds, int threads, int port, char **command)
{
    struct worker *workers = calloc(threads, sizeof *workers);
    uint64_t seed = time(NULL) * 2654435761u | 1, changes = 0;
    unsigned long long moved = 0, rescued = 0, chunks = 0;
    printf("seed %llu\n", (unsigned long long)seed);
    for (int n = 0; n < threads; n++) {
        struct worker *w = &workers[n];
        w->number = n, w->port = port, w->seed = seed + n * 1000003;
        w->sent = malloc(MOST_BYTES + 2), w->got = malloc(MOST_BYTES + 2);
        w->changing = -1;
    }
    for (int round = 0; round < rounds; round++) {
        static const uint32_t sizes[] = {400, 30000, 2000, 60000, 100, 8000};
        round_sizes = sizes[round % 6];
        stop = false;
        start(command, workers, threads);
        unsigned there = 0;
        for (int n = 0; n < threads; n++)
            there += check(&workers[n]);
        unsigned long long items = stat(&workers[0], "", "curr_items");
        if (items != there)
            fail("round %d: %u items, and it says %llu", round, there, items);
        if (round == 0) {
            char line[512];
            for (int n = 0; n < threads; n++) {
                int size = snprintf(line, sizeof line, "ms t%d-count 1\r\n0\r\n", n);
                if (!put(&workers[n], line, size) || !take(&workers[n], line, 0) || strcmp(line, "HD") != 0)
                    fail("makes no counter: %s", line);
            }
        }
        for (int n = 0; n < threads; n++)
            pthread_create(&workers[n].thread, NULL, worker_main, &workers[n]);
        usleep(50000 + some(&seed, 500000)); /* then the server is killed at any place */
        struct worker observer = {.socket = reach(port)};
        /* In half of the rounds no change follows the last moves. */
        stop = moves && round % 2;
        for (int n = 0; stop && n < 60; n++) {
            char line[512];
            if (!put(&observer, "slabs reassign -1 0\r\n", 21) || !take(&observer, line, 0))
                fail("the server is gone");
            usleep(5000); /* pages move one at a time */
        }
        moved += stat(&observer, "", "slabs_moved");
        rescued += stat(&observer, "", "slab_reassign_rescues");
        chunks += stat(&observer, "", "slab_reassign_chunk_rescues");
        close(observer.socket);
        end(workers, threads);
        for (int n = 0; n < threads; n++)
            changes += workers[n].done;
    }
    unsigned there = flush_all(workers, threads, command);
    printf("%d kills, %llu changes, %u items at the end; %llu pages moved, with %llu items and %llu chunks, %llu items lost\n",
           rounds, (unsigned long long)changes, there, moved, rescued, chunks, lost);
    return 0;
}

/* --- Bench ----------------------------------------------------------------------------- */

#define LIVE 10000 /* items of each thread */

/* Sends a request, of which `size` bytes are in `request`; the first line of the answer. */
static void ask(struct worker *w, const char *request, size_t size, char *line)
{
    if (!put(w, request, size) || !take(w, line, 0))
        fail("the server is gone");
}

static void bench_insert(struct worker *w, uint64_t n)
{
    char line[512];
    int size = sprintf(w->sent, "set t%d-%08u 0 0 %u\r\n", w->number, (unsigned)n, w->bytes);
    memset(w->sent + size, 'v', w->bytes);
    memcpy(w->sent + size + w->bytes, "\r\n", 2);
    ask(w, w->sent, size + w->bytes + 2, line);
    if (strcmp(line, "STORED") != 0)
        fail("set: %s", line);
}

static void bench_delete(struct worker *w, uint64_t n)
{
    char line[512];
    ask(w, w->sent, sprintf(w->sent, "delete t%d-%08u\r\n", w->number, (unsigned)n), line);
    if (strcmp(line, "DELETED") != 0)
        fail("delete: %s", line);
}

static void bench_get(struct worker *w, uint64_t n)
{
    char line[512];
    ask(w, w->sent, sprintf(w->sent, "get t%d-%08u\r\n", w->number, (unsigned)n), line);
    if (strncmp(line, "VALUE ", 6) != 0 || !take(w, w->got, w->bytes + 2) || !take(w, line, 0)
        || strcmp(line, "END") != 0)
        fail("get: %s", line);
}

static void *fill_main(void *argument)
{
    for (uint64_t n = 0; n < LIVE; n++)
        bench_insert(argument, n);
    return NULL;
}

static void *bench_main(void *argument)
{
    struct worker *w = argument;
    double until = now() + w->seconds;
    for (w->done = 0; w->done % 64 || now() < until; w->done++) {
        if (w->gets)
            bench_get(w, some(&w->seed, LIVE));
        else if (w->done % 2 == 0)
            bench_insert(w, LIVE + w->done / 2);
        else
            bench_delete(w, w->done / 2);
    }
    return NULL;
}

/* Has all threads do something. */
static void in_threads(struct worker *workers, int threads, void *(*work)(void *))
{
    for (int n = 0; n < threads; n++)
        pthread_create(&workers[n].thread, NULL, work, &workers[n]);
    for (int n = 0; n < threads; n++)
        pthread_join(workers[n].thread, NULL);
}

static int run_bench(int port, int threads, uint32_t bytes, double seconds, pid_t program)
{
    struct worker *workers = calloc(threads, sizeof *workers);
    double rate[2], ns[2];
    for (int n = 0; n < threads; n++) {
        struct worker *w = &workers[n];
        w->number = n, w->bytes = bytes, w->seconds = seconds, w->seed = n + 1;
        w->sent = malloc(bytes + 512), w->got = malloc(bytes + 512);
        if ((w->socket = reach(port)) < 0)
            fail("no server");
    }
    in_threads(workers, threads, fill_main);
    /* Gets first: they need what was filled in. */
    for (int gets = 1; gets >= 0; gets--) {
        uint64_t done = 0;
        double began = now(), used = used_by(program);
        for (int n = 0; n < threads; n++)
            workers[n].gets = gets;
        in_threads(workers, threads, bench_main);
        for (int n = 0; n < threads; n++)
            done += workers[n].done;
        rate[gets] = done / (now() - began);
        ns[gets] = (used_by(program) - used) * 1e9 / done;
    }
    printf("%.0f %.0f %.0f %.0f\n", rate[0], ns[0], rate[1], ns[1]);
    return 0;
}

/* --- Restart --------------------------------------------------------------------------- */

static int run_restart(int items, int bytes, int port, char **command)
{
    struct worker w = {.port = port};
    char line[512], value[MOST_BYTES];
    memset(value, 'v', bytes);
    start(command, &w, 1);
    for (int n = 0; n < items; n++) {
        int size = snprintf(line, sizeof line, "set key-%d 0 0 %d noreply\r\n", n, bytes);
        if (!put(&w, line, size) || !put(&w, value, bytes) || !put(&w, "\r\n", 2))
            fail("the server is gone");
    }
    for (int round = 0; round < 4; round++) {
        unsigned long long found = stat(&w, "", "curr_items");
        if (found != (unsigned)items)
            fail("%llu items, not %d", found, items);
        int size = snprintf(line, sizeof line, "mg key-%d s\r\n", items / 2);
        if (!put(&w, line, size) || !take(&w, line, 0) || strncmp(line, "HD", 2) != 0)
            fail("answered %s", line);
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
        close(w.socket);
        if (round == 3)
            break;
        double began = now();
        start(command, &w, 1);
        printf("%d items of %d bytes, killed: answers again after %.2f s\n", items, bytes, now() - began);
    }
    return 0;
}

int main(int count, char **words)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count > 5 && (strcmp(words[1], "kill") == 0 || strcmp(words[1], "move") == 0)) {
        moves = words[1][0] == 'm';
        return run_kill(atoi(words[2]), atoi(words[3]), atoi(words[4]), words + 5);
    }
    if (count > 5 && strcmp(words[1], "restart") == 0 && atoi(words[3]) <= MOST_BYTES)
        return run_restart(atoi(words[2]), atoi(words[3]), atoi(words[4]), words + 5);
    if (count == 7 && strcmp(words[1], "bench") == 0)
        return run_bench(atoi(words[2]), atoi(words[3]), atoi(words[4]), atof(words[5]), atoi(words[6]));
    fprintf(stderr, "client kill|move ROUNDS THREADS PORT COMMAND...\n"
                    "client restart ITEMS BYTES PORT COMMAND...\nclient bench PORT THREADS BYTES SECONDS PID\n");
    return 64;
}
