/* Prints what programs see that start children, get signals or change their user. The arguments are a
   directory and a part. The tests compare the output under `run` with that on tmpfs. A sleep gives another
   thread or process the time to begin a wait in the kernel, which nothing shows. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHOW(call) do { errno = 0; long shown = (long)(call); \
    printf("%d: %s = %ld%s%s\n", __LINE__, #call, shown, errno ? " " : "", \
           errno ? strerrorname_np(errno) : ""); } while (0)

extern char **environ;
static char *self;

static int status_of(pid_t child)
{
    int status = -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

static int spawned(const char *command, posix_spawn_file_actions_t *actions)
{
    char *words[] = {"sh", "-c", (char *)command, NULL};
    pid_t child;
    int failed = posix_spawn(&child, "/bin/sh", actions, NULL, words, environ);
    return failed ? -failed : status_of(child);
}

/* The first call on the store is that of a child which shares the memory. */
static void first_in_child(const char *top)
{
    char path[4096];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, top);
    snprintf(path, sizeof path, "%s/spawned", top);
    posix_spawn_file_actions_addopen(&actions, 1, path, O_CREAT | O_WRONLY, 0644);
    SHOW(spawned("mkdir first; cd first; echo text; : >inside", &actions));
    posix_spawn_file_actions_destroy(&actions);
    pid_t child = vfork();
    if (child == 0) {
        char *words[] = {"sh", "-c", "test -d first && echo more >>spawned", NULL};
        if (chdir(top) == 0)
            execv("/bin/sh", words);
        _exit(1);
    }
    SHOW(status_of(child));
    SHOW(chdir(top));
    struct stat found;
    SHOW(stat("spawned", &found));
    SHOW(found.st_size);
    SHOW(stat("first/inside", &found));
}

static void *opens(void *stop)
{
    long failed = 0;
    while (!*(volatile int *)stop) {
        int fd = open("opened", O_CREAT | O_RDONLY | O_CLOEXEC, 0644);
        int pipes[2];
        failed += fd < 0 || close(fd) != 0;
        if (pipe(pipes) == 0) {
            close(pipes[0]);
            close(pipes[1]);
        }
    }
    return (void *)failed;
}

static void *spawns_elsewhere(void *actions)
{
    char *words[] = {"sleep", "0.3", NULL};
    pid_t child;
    long failed = posix_spawn(&child, "/bin/sleep", actions, NULL, words, environ);
    return (void *)(failed ? failed : status_of(child));
}

static void *spawns_and_ends(void *actions)
{
    char *words[] = {"true", NULL};
    pid_t child;
    return (void *)(long)posix_spawn(&child, "/bin/true", actions, NULL, words, environ);
}

/* Children that share the memory, beside threads that use it. */
static void beside_threads(void)
{
    pthread_t thread;
    int stop = 0, failed = 0;
    void *result;
    pthread_create(&thread, NULL, opens, &stop);
    for (int n = 0; n < 150; n++)
        failed += spawned("exit 0", NULL) != 0;
    stop = 1;
    pthread_join(thread, &result);
    SHOW(failed);
    SHOW(result);
    SHOW(mkdir("elsewhere", 0755));
    int held = open("held", O_CREAT | O_RDWR, 0644);
    SHOW(flock(held, LOCK_EX));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, "elsewhere");
    pthread_create(&thread, NULL, spawns_elsewhere, &actions);
    usleep(150000);
    SHOW(close(open("relative", O_CREAT | O_WRONLY, 0644)));
    pthread_join(thread, &result);
    SHOW(result);
    pthread_create(&thread, NULL, spawns_and_ends, &actions);
    pthread_join(thread, &result);
    SHOW(result);
    SHOW(access("relative", F_OK));
    SHOW(access("elsewhere/relative", F_OK));
    SHOW(close(held));
    wait(NULL);
    held = open("held", O_RDWR);
    SHOW(flock(held, LOCK_EX | LOCK_NB));
    SHOW(close(held));
    posix_spawn_file_actions_destroy(&actions);
}

static volatile int arrived;
static volatile pid_t *handled_in;

static void on_signal(int signal)
{
    (void)signal;
    arrived++;
    if (handled_in && getpid() != handled_in[0])
        handled_in[1] = getpid();
}

/* The new program has the signal mask of the old one, whatever arrives meanwhile. */
static void signals_at_exec(void)
{
    int changed = 0;
    for (int n = 0; n < 50; n++) {
        pid_t child = fork();
        if (child == 0) {
            struct sigaction action = {.sa_handler = on_signal};
            sigaction(SIGURG, &action, NULL);
            close(open("executes", O_CREAT | O_WRONLY, 0644));
            execl(self, self, "show-mask", NULL);
            _exit(100);
        }
        int status;
        while (waitpid(child, &status, WNOHANG) == 0) {
            kill(child, SIGURG);
            usleep(5000 + n * 20);
        }
        changed += status != 0;
    }
    SHOW(changed);
}

/* A signal that waits at a fork is the parent's only. */
static void signals_at_fork(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    handled_in = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    handled_in[0] = getpid();
    SHOW(sigaction(SIGALRM, &action, NULL));
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    int fd = open("forks", O_CREAT | O_WRONLY, 0644), failed = 0;
    setitimer(ITIMER_REAL, &often, NULL);
    for (int n = 0; n < 200; n++) {
        failed += write(fd, "x", 1) != 1;
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        failed += status_of(child) != 0;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    SHOW(failed);
    SHOW(handled_in[1]);
    SHOW(close(fd));
    handled_in = NULL;
}

static void *waits(void *argument)
{
    (void)argument;
    pause();
    return NULL;
}

/* libc changes the user in all threads. */
static void users(void)
{
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        if (chmod(".", 0777) != 0)
            _exit(1);
        pthread_create(&thread, NULL, waits, NULL);
        close(open("before", O_CREAT | O_WRONLY, 0600));
        if (setgid(65534) != 0 || setuid(65534) != 0)
            _exit(1);
        struct stat made;
        if (close(open("after", O_CREAT | O_WRONLY, 0600)) != 0 || stat("after", &made) != 0)
            _exit(2);
        _exit(made.st_uid == 65534 && made.st_gid == 65534 ? 0 : 3);
    }
    SHOW(status_of(child));
    /* These change the calling thread. */
    SHOW(syscall(SYS_setfsuid, 65534));
    SHOW(close(open("by-fsuid", O_CREAT | O_WRONLY, 0600)));
    SHOW(open("before", O_RDONLY));
    SHOW(syscall(SYS_setfsuid, 0));
    struct stat made;
    SHOW(stat("by-fsuid", &made));
    SHOW(made.st_uid);
}

static void *volatile deep;
static void *volatile nowhere = (void *)8;
static int on_stack;
static volatile int outcome = -1;

static void on_inner(int signal)
{
    char filled[8192];
    (void)signal;
    memset(filled, 0x55, sizeof filled);
    deep = filled;
    arrived++;
}

static void on_outer(int signal)
{
    char kept[1024];
    (void)signal;
    memset(kept, 0xaa, sizeof kept);
    deep = kept;
    int before = arrived;
    while (arrived < before + 20)
        if (pwrite(on_stack, kept, 8, 0) != 8 || pread(on_stack, nowhere, 8, 0) != -1) {
            outcome = errno;
            return;
        }
    for (unsigned n = 0; n < sizeof kept; n++)
        if (kept[n] != (char)0xaa)
            return;
    outcome = 0;
}

/* Handlers on a stack of their own, of which one interrupts calls of the other. */
static void on_other_stack(void)
{
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    SHOW(sigaltstack(&stack, NULL));
    struct sigaction outer = {.sa_handler = on_outer, .sa_flags = SA_ONSTACK};
    struct sigaction inner = {.sa_handler = on_inner, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR2, &outer, NULL);
    sigaction(SIGALRM, &inner, NULL);
    on_stack = open("on-stack", O_CREAT | O_RDWR, 0644);
    arrived = 0;
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    SHOW(raise(SIGUSR2));
    setitimer(ITIMER_REAL, &never, NULL);
    SHOW(outcome);
    SHOW(close(on_stack));
}

/* Whether another process could lock bytes. */
static int is_free(int fd, off_t start, off_t len)
{
    pid_t child = fork();
    if (child == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
        _exit(fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
    }
    return WEXITSTATUS(status_of(child));
}

static int fd_locked;

static void *locks_again(void *argument)
{
    (void)argument;
    return (void *)(long)flock(open("whole", O_RDWR), LOCK_EX);
}

static void locks(void)
{
    int fd = open("locked", O_CREAT | O_RDWR, 0644);
    SHOW(ftruncate(fd, 1000));
    SHOW(lseek(fd, 100, SEEK_SET));
    SHOW(lockf(fd, F_LOCK, 10));
    SHOW(is_free(fd, 0, 100));
    SHOW(is_free(fd, 100, 1));
    SHOW(is_free(fd, 109, 1));
    SHOW(is_free(fd, 110, 0));
    SHOW(lockf(fd, F_TEST, 10));
    SHOW(lockf(fd, F_ULOCK, 10));
    SHOW(is_free(fd, 0, 0));
    struct flock end = {.l_type = F_WRLCK, .l_whence = SEEK_END, .l_start = -10, .l_len = 10};
    SHOW(fcntl(fd, F_SETLK, &end));
    SHOW(is_free(fd, 989, 1));
    SHOW(is_free(fd, 990, 1));
    struct flock none = {.l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_start = -101};
    SHOW(fcntl(fd, F_SETLK, &none));
    int only = open("locked", O_RDONLY), out = open("locked", O_WRONLY);
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    SHOW(fcntl(only, F_SETLK, &all));
    all.l_type = F_RDLCK;
    SHOW(fcntl(out, F_SETLK, &all));
    SHOW(fcntl(only, F_OFD_SETLK, &all));
    SHOW(close(only));
    SHOW(close(out));
    /* A wait goes on after a handler with SA_RESTART. */
    fd_locked = open("whole", O_CREAT | O_RDWR, 0644);
    SHOW(flock(fd_locked, LOCK_EX));
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t thread;
    void *result;
    arrived = 0;
    pthread_create(&thread, NULL, locks_again, NULL);
    for (int n = 0; n < 5; n++) {
        usleep(20000);
        int before = arrived;
        pthread_kill(thread, SIGUSR1);
        while (arrived == before)
            usleep(1000);
    }
    usleep(20000);
    SHOW(close(fd_locked));
    pthread_join(thread, &result);
    SHOW(result);
    action.sa_flags = 0;
    sigaction(SIGUSR1, &action, NULL);
    pthread_create(&thread, NULL, locks_again, NULL);
    usleep(50000);
    pthread_kill(thread, SIGUSR1);
    pthread_join(thread, &result);
    SHOW(result);
    SHOW(close(fd));
}

/* Record locks are those of the process, also of its next program. */
static void locks_at_exec(void)
{
    int pipes[2], fd = open("kept-lock", O_CREAT | O_RDWR, 0644);
    char byte;
    SHOW(pipe(pipes));
    pid_t child = fork();
    if (child == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 5};
        dup2(pipes[1], 1);
        if (fcntl(fd, F_SETLK, &lock) == 0)
            execl("/bin/sh", "sh", "-c", "echo; exec sleep 30", NULL);
        _exit(1);
    }
    SHOW(read(pipes[0], &byte, 1));
    SHOW(is_free(fd, 0, 5));
    SHOW(is_free(fd, 5, 1));
    SHOW(kill(child, SIGKILL));
    SHOW(status_of(child));
    SHOW(is_free(fd, 5, 1));
}

/* Locks that wait for each other. */
static void crossed_locks(void)
{
    int fd = open("crossed", O_CREAT | O_RDWR, 0644), pipes[2];
    struct flock first = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    struct flock second = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1};
    SHOW(pipe(pipes));
    SHOW(fcntl(fd, F_SETLK, &first));
    pid_t child = fork();
    if (child == 0) {
        int done = fcntl(fd, F_SETLK, &second) == 0 && write(pipes[1], "x", 1) == 1;
        _exit(done ? fcntl(fd, F_SETLKW, &first) != 0 : 2);
    }
    char byte;
    SHOW(read(pipes[0], &byte, 1));
    usleep(100000);
    SHOW(fcntl(fd, F_SETLKW, &second));
    SHOW(close(fd));
    SHOW(status_of(child));
}

/* Buffers that are larger than the file, or not all there. */
static void buffers(void)
{
    int fd = open("short", O_CREAT | O_RDWR, 0644);
    SHOW(write(fd, "0123456789", 10));
    char *large = mmap(NULL, 1L << 30, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    SHOW(pread(fd, large, 1L << 30, 0));
    struct rusage used;
    SHOW(getrusage(RUSAGE_SELF, &used));
    SHOW(used.ru_maxrss > 300 << 10);
    char *pages = mmap(NULL, 1 << 17, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SHOW(munmap(pages + (1 << 16), 1 << 16));
    char *end = pages + (1 << 16);
    SHOW(pread(fd, end - 10, 1 << 20, 0));
    SHOW(pread(fd, end - 100, 200, 5));
    struct iovec parts[] = {{pages, 4}, {nowhere, 4}, {pages, 4}};
    SHOW(preadv(fd, parts, 3, 0));
    SHOW(pwritev(fd, parts, 3, 0));
    SHOW(lseek(fd, 0, SEEK_SET));
    SHOW(readv(fd, parts, 3));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(pwritev2(fd, parts, 1, 0, RWF_DSYNC));
    SHOW(syscall(SYS_dup3, 1, fd, 12345));
    SHOW(syscall(SYS_close_range, fd, fd, 99));
    SHOW(read(fd, pages, 1));
    SHOW(close(fd));
}

/* A message with a descriptor, whose file has an offset. */
static void messages(void)
{
    int fd = open("passed", O_CREAT | O_RDWR, 0644), pair[2], got = -1;
    SHOW(write(fd, "0123456789", 10));
    SHOW(lseek(fd, 3, SEEK_SET));
    SHOW(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    char byte = 'x';
    union { struct cmsghdr head; char room[CMSG_SPACE(sizeof fd)]; } control = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1,
                             .msg_control = &control, .msg_controllen = sizeof control};
    control.head = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    SHOW(sendmsg(pair[0], &message, 0));
    SHOW(recvmsg(pair[1], &message, 0));
    memcpy(&got, CMSG_DATA(&control.head), sizeof got);
    char text[8] = "";
    SHOW(read(got, text, 4));
    printf("%s\n", text);
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(write(fd, "ab", 2));
    SHOW(lseek(got, 0, SEEK_CUR));
    SHOW(close(fd));
    SHOW(pread(got, text, 4, 6));
    printf("%s\n", text);
    SHOW(close(got));
}

static void *opens_pipe(void *argument)
{
    (void)argument;
    return (void *)(long)open("fifo", O_RDONLY);
}

/* An open of a named pipe waits, and other threads make children meanwhile. */
static void pipes_with_names(void)
{
    pthread_t thread;
    void *result;
    SHOW(mkfifo("fifo", 0644));
    arrived = 0;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    pthread_create(&thread, NULL, opens_pipe, NULL);
    usleep(50000);
    pthread_kill(thread, SIGUSR1);
    usleep(50000);
    SHOW(arrived);
    pid_t child = fork();
    if (child == 0) {
        int fd = open("fifo", O_WRONLY);
        _exit(fd < 0);
    }
    SHOW(status_of(child));
    pthread_join(thread, &result);
    SHOW((long)result >= 0);
}
/* A script sees the path by which it was called. */
static void scripts(void)
{
    const char *text = "#!/bin/sh\necho \"$0\" \"$1\"\n";
    int fd = open("script", O_CREAT | O_WRONLY, 0755);
    SHOW(write(fd, text, strlen(text)));
    SHOW(close(fd));
    SHOW(mkdir("scripts", 0755));
    SHOW(symlink("../script", "scripts/link"));
    SHOW(spawned("./script one", NULL));
    SHOW(spawned("cd scripts && ../script two && ./link three && PATH=.:$PATH link four", NULL));
    SHOW(unlink("scripts/link"));
    SHOW(rmdir("scripts"));
    SHOW(unlink("script"));
}

/* An open without a descriptor neither makes nor cuts a file. */
static void limits(void)
{
    int copies[64], count = 0;
    struct stat found;
    SHOW(mkdir("few", 0755));
    int fd = open("full", O_RDWR | O_CREAT, 0644);
    SHOW(write(fd, "text", 4));
    struct rlimit few = {64, 64};
    SHOW(setrlimit(RLIMIT_NOFILE, &few));
    while (count < 64 && (copies[count] = dup(fd)) >= 0)
        count++;
    SHOW(open("new", O_WRONLY | O_CREAT, 0644));
    SHOW(open("full", O_WRONLY | O_TRUNC));
    SHOW(open("full", O_RDONLY));
    SHOW(open("few", O_RDWR | O_TMPFILE, 0600));
    SHOW(creat("few/new", 0644));
    SHOW(access("new", F_OK));
    SHOW(stat("full", &found));
    SHOW(found.st_size);
    SHOW(close(copies[--count]));
    SHOW(open("new", O_WRONLY | O_CREAT | O_EXCL, 0644) == copies[count]);
    SHOW(open("more", O_WRONLY | O_CREAT | O_EXCL, 0644));
    SHOW(close(copies[count]));
    SHOW(open("missing/new", O_WRONLY | O_CREAT, 0644));
    SHOW(open("full", O_WRONLY | O_CREAT | O_EXCL, 0644));
    SHOW(open("full", O_RDONLY) == copies[count]);
    SHOW(rmdir("few"));
    SHOW(unlink("full"));
    SHOW(unlink("new"));
    SHOW(unlink("more"));
}

/* The limit of the sizes of files. */
static void sizes(void)
{
    enum { LIMIT = 1 << 20 };
    static char bytes[LIMIT + 100];
    struct iovec parts[2] = {{bytes, 50}, {bytes, 100}};
    struct stat found;
    struct rlimit limit = {LIMIT, LIMIT};
    int fd = open("limited", O_RDWR | O_CREAT, 0644);
    int end = open("limited", O_WRONLY | O_APPEND);
    SHOW(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    SHOW(setrlimit(RLIMIT_FSIZE, &limit));
    SHOW(write(fd, bytes, LIMIT - 100));
    SHOW(writev(end, parts, 2));
    SHOW(writev(end, parts, 2));
    SHOW(write(end, bytes, 0));
    SHOW(pwrite(fd, bytes, 100, LIMIT - 50));
    SHOW(pwrite(fd, bytes, 100, LIMIT));
    SHOW(pwrite(fd, bytes, 1, LIMIT + 50));
    SHOW(ftruncate(fd, LIMIT + 1));
    SHOW(truncate("limited", LIMIT + 1));
    SHOW(fallocate(fd, 0, LIMIT, 1));
    SHOW(fstat(fd, &found));
    SHOW(found.st_size);
    SHOW(ftruncate(fd, 0));
    SHOW(ftruncate(fd, LIMIT));
    SHOW(truncate("limited", 0));
    SHOW(spawned("head -c 2000000 /dev/zero 2>&1 >limited; echo $?", NULL));
    SHOW(stat("limited", &found));
    SHOW(found.st_size);
    SHOW(signal(SIGXFSZ, SIG_DFL) != SIG_ERR);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit none = {0, 0};
        SHOW(write(open("kept", O_WRONLY | O_CREAT, 0644), "text", 4));
        fflush(stdout);
        setrlimit(RLIMIT_FSIZE, &none);
        write(fd, bytes, 1);
        _exit(1);
    }
    int status = status_of(child);
    SHOW(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
    SHOW(stat("kept", &found));
    SHOW(found.st_size);
    SHOW(unlink("kept"));
    SHOW(unlink("limited"));
}

int main(int count, char **arguments)
{
    self = "/proc/self/exe";
    if (count == 2 && strcmp(arguments[1], "show-mask") == 0) {
        sigset_t mask;
        sigprocmask(SIG_BLOCK, NULL, &mask);
        return sigismember(&mask, SIGURG) + sigismember(&mask, SIGTERM);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count != 3)
        return 1;
    if (strcmp(arguments[2], "first_in_child") == 0) {
        first_in_child(arguments[1]);
        return 0;
    }
    static const struct { const char *name; void (*run)(void); } parts[] = {
        {"beside_threads", beside_threads}, {"signals_at_exec", signals_at_exec},
        {"signals_at_fork", signals_at_fork}, {"users", users},
        {"on_other_stack", on_other_stack}, {"locks", locks}, {"locks_at_exec", locks_at_exec},
        {"crossed_locks", crossed_locks}, {"buffers", buffers},
        {"limits", limits}, {"sizes", sizes},
        {"scripts", scripts}, {"messages", messages}, {"pipes_with_names", pipes_with_names},
    };
    for (unsigned n = 0; n < sizeof parts / sizeof *parts; n++)
        if (chdir(arguments[1]) == 0 && strcmp(arguments[2], parts[n].name) == 0) {
            parts[n].run();
            return 0;
        }
    return 1;
}
