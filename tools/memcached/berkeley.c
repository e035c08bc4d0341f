/* berkeley -d DIR [-t THREADS] [-m MEGABYTES] [-n] ...
 *
 * A store with Berkeley DB and memcached's protocol, for comparisons. (MemcacheDB was one, and is no
 * longer in Debian.) It has "set", "get" of one key and "delete", in the text protocol with answers.
 * Each set or delete is a transaction of its own. It is durable before the answer, or with -n written
 * without a sync. Threads share connections as memcached's do. -l, -p, -u and -U are memcached's; the
 * last two have no effect. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <db.h>
#include <err.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { KEY_MOST = 250, LINE_MOST = 2048, VALUE_MOST = 1 << 20, LOG_BUFFER_BYTES = 4 << 20, LOCKS = 100000 };

/* Requests that were received and not answered yet: lines, and the values after those of "set". */
struct connection {
    int socket;
    size_t used;
    char bytes[LINE_MOST + VALUE_MOST + 2];
};

static DB *db;

static void check(int error, const char *what)
{
    if (error != 0)
        errx(1, "%s: %s", what, db_strerror(error));
}

static void open_db(const char *directory, unsigned megabytes, bool durable)
{
    DB_ENV *environment;
    check(db_env_create(&environment, 0), "db_env_create");
    check(environment->set_cachesize(environment, megabytes >> 10, megabytes % 1024 << 20, 1), "set_cachesize");
    check(environment->set_lg_bsize(environment, LOG_BUFFER_BYTES), "set_lg_bsize");
    check(environment->set_lg_max(environment, 8 * LOG_BUFFER_BYTES), "set_lg_max");
    check(environment->set_lk_max_locks(environment, LOCKS), "set_lk_max_locks");
    check(environment->set_lk_max_objects(environment, LOCKS), "set_lk_max_objects");
    check(environment->set_lk_detect(environment, DB_LOCK_DEFAULT), "set_lk_detect");
    if (!durable)
        check(environment->set_flags(environment, DB_TXN_WRITE_NOSYNC, 1), "set_flags");
    unsigned how = DB_CREATE | DB_PRIVATE | DB_THREAD | DB_RECOVER;
    unsigned parts = DB_INIT_TXN | DB_INIT_LOG | DB_INIT_LOCK | DB_INIT_MPOOL;
    check(environment->open(environment, directory, how | parts, 0600), "DB_ENV->open");
    check(db_create(&db, environment, 0), "db_create");
    how = DB_CREATE | DB_AUTO_COMMIT | DB_THREAD;
    check(db->open(db, NULL, "items", NULL, DB_HASH, how, 0600), "DB->open");
}

static bool answer(const struct connection *c, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t done = send(c->socket, bytes, size, MSG_NOSIGNAL);
        if (done <= 0)
            return false;
        bytes += done, size -= done;
    }
    return true;
}

static bool say(const struct connection *c, const char *line)
{
    return answer(c, line, strlen(line));
}

/* An item is its flags and its value. */
static bool set(const struct connection *c, char *key, uint32_t flags, const char *value, uint32_t size)
{
    static __thread char item[4 + VALUE_MOST];
    memcpy(item, &flags, 4);
    memcpy(item + 4, value, size);
    DBT name = {.data = key, .size = strlen(key)}, data = {.data = item, .size = 4 + size};
    int error;
    while ((error = db->put(db, NULL, &name, &data, 0)) == DB_LOCK_DEADLOCK)
        ;
    check(error, "DB->put");
    return say(c, "STORED\r\n");
}

static bool get(const struct connection *c, char *key)
{
    static __thread char found[LINE_MOST + VALUE_MOST + 16], item[4 + VALUE_MOST];
    DBT name = {.data = key, .size = strlen(key)};
    DBT data = {.data = item, .ulen = sizeof item, .flags = DB_DBT_USERMEM};
    int error;
    while ((error = db->get(db, NULL, &name, &data, 0)) == DB_LOCK_DEADLOCK)
        ;
    if (error == DB_NOTFOUND)
        return say(c, "END\r\n");
    check(error, "DB->get");
    uint32_t flags, size = data.size - 4;
    memcpy(&flags, item, 4);
    int head = sprintf(found, "VALUE %s %u %u\r\n", key, flags, size);
    memcpy(found + head, item + 4, size);
    memcpy(found + head + size, "\r\nEND\r\n", 7);
    return answer(c, found, head + size + 7);
}

static bool delete(const struct connection *c, char *key)
{
    DBT name = {.data = key, .size = strlen(key)};
    int error;
    while ((error = db->del(db, NULL, &name, 0)) == DB_LOCK_DEADLOCK)
        ;
    if (error != DB_NOTFOUND)
        check(error, "DB->del");
    return say(c, error == 0 ? "DELETED\r\n" : "NOT_FOUND\r\n");
}

/* Answers the request that begins at `at`. Returns its end, 0 if it is not complete, or -1 if the
 * connection must be closed. */
static ssize_t one(const struct connection *c, size_t at)
{
    char line[LINE_MOST], key[KEY_MOST + 1];
    const char *from = c->bytes + at, *end = memchr(from, '\n', c->used - at);
    if (end == NULL)
        return c->used - at < LINE_MOST ? 0 : -1;
    size_t length = end - from;
    if (length >= sizeof line)
        return -1;
    memcpy(line, from, length);
    line[length] = 0;
    size_t next = at + length + 1;
    uint32_t flags, size;
    bool done;
    int words = sscanf(line, "set %250s %u %*u %u", key, &flags, &size);
    if (words > 0) {
        if (words != 3 || size > VALUE_MOST || strstr(line, "noreply") != NULL)
            return -1; /* there is no telling what follows */
        if (c->used - next < size + 2)
            return 0;
        done = set(c, key, flags, c->bytes + next, size);
        next += size + 2;
    } else if (sscanf(line, "get %250s", key) == 1)
        done = get(c, key);
    else if (sscanf(line, "delete %250s", key) == 1)
        done = delete(c, key);
    else if (strncmp(line, "version", 7) == 0)
        done = say(c, "VERSION 1.0.0\r\n");
    else if (strncmp(line, "quit", 4) == 0)
        return -1;
    else
        done = say(c, "ERROR\r\n");
    return done ? (ssize_t)next : -1;
}

/* Receives, and answers all that is complete. */
static bool serve(struct connection *c)
{
    ssize_t got = recv(c->socket, c->bytes + c->used, sizeof c->bytes - c->used, 0);
    if (got <= 0)
        return false;
    c->used += got;
    ssize_t at = 0, next;
    while ((size_t)at < c->used && (next = one(c, at)) != 0) {
        if (next < 0)
            return false;
        at = next;
    }
    memmove(c->bytes, c->bytes + at, c->used - at);
    c->used -= at;
    return true;
}

static void *worker(void *epoll)
{
    struct epoll_event event;
    for (;;) {
        if (epoll_wait(*(int *)epoll, &event, 1, -1) != 1)
            continue;
        struct connection *c = event.data.ptr;
        if (!serve(c)) {
            close(c->socket);
            free(c);
        }
    }
    return NULL;
}

static _Noreturn void listen_at(const char *address, int port, int *epolls, int threads)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (inet_pton(AF_INET, address, &at.sin_addr) != 1)
        errx(1, "%s is not an address", address);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 1024) != 0)
        err(1, "nobody can listen at %s:%d", address, port);
    for (int n = 0;; n = (n + 1) % threads) {
        int accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (accepted < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        struct connection *c = accepted < 0 ? NULL : malloc(sizeof *c);
        if (c == NULL)
            err(1, "no more connections");
        c->socket = accepted, c->used = 0;
        setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(epolls[n], EPOLL_CTL_ADD, accepted, &event) != 0)
            err(1, "epoll_ctl");
    }
}

int main(int count, char **words)
{
    const char *directory = NULL, *address = "127.0.0.1";
    int option, port = 11211, threads = 1, megabytes = 64;
    bool durable = true;
    while ((option = getopt(count, words, "d:l:p:t:m:nu:U:")) != -1)
        switch (option) {
        case 'd': directory = optarg; break;
        case 'l': address = optarg; break;
        case 'p': port = atoi(optarg); break;
        case 't': threads = atoi(optarg); break;
        case 'm': megabytes = atoi(optarg); break;
        case 'n': durable = false; break;
        case 'u': case 'U': break;
        default: return 64;
        }
    if (directory == NULL || threads < 1 || megabytes < 1)
        errx(64, "berkeley -d DIR [-t THREADS] [-m MEGABYTES] [-n] [-l ADDRESS] [-p PORT]");
    open_db(directory, megabytes, durable);
    int *epolls = calloc(threads, sizeof *epolls);
    if (epolls == NULL)
        err(1, "no memory");
    for (int n = 0; n < threads; n++) {
        pthread_t thread;
        epolls[n] = epoll_create1(EPOLL_CLOEXEC);
        if (epolls[n] < 0 || pthread_create(&thread, NULL, worker, &epolls[n]) != 0)
            errx(1, "no more threads");
    }
    listen_at(address, port, epolls, threads);
}
