/* A mail queue in files: a message is in the queue as a whole, or not at all.
 *
 *   mail_queue DIR deliver NAME    reads a message from standard input
 *   mail_queue DIR take            prints the oldest message, and removes it
 *
 * A message is written under a temporary name, and renamed when it is complete. On BPFS every call
 * is durable and ordered when it returns, so that suffices. Other file systems need the calls of
 * fsync: without them a crash after the rename can leave an empty message. They cost nothing on
 * BPFS, where they return at once. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failed(const char *what)
{
    fprintf(stderr, "mail_queue: %s: %s\n", what, strerror(errno));
    return 1;
}

/* Writes standard input to a new file, and makes it durable. */
static int store(int directory, const char *name)
{
    char bytes[4096];
    ssize_t count;
    int file = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (file < 0)
        return -1;
    while ((count = read(0, bytes, sizeof bytes)) > 0)
        if (write(file, bytes, (size_t)count) != count) {
            count = -1;
            break;
        }
    if (count < 0 || fsync(file)) {
        close(file);
        unlinkat(directory, name, 0);
        return -1;
    }
    return close(file);
}

static int deliver(int directory, const char *name)
{
    char temporary[300];
    snprintf(temporary, sizeof temporary, ".%s", name);
    unlinkat(directory, temporary, 0); /* left by a crash */
    if (store(directory, temporary))
        return failed("cannot store the message");
    if (renameat(directory, temporary, directory, name))
        return failed("cannot queue the message");
    return fsync(directory) ? failed("cannot make the name durable") : 0;
}

/* Finds the oldest message, and of several with the same time the first by name. A leading dot
 * marks a message that is not complete. */
static int oldest(int directory, char *name, size_t size)
{
    struct timespec best = {0};
    DIR *list = fdopendir(dup(directory));
    if (!list)
        return -1;
    name[0] = 0;
    for (struct dirent *entry; (entry = readdir(list));) {
        struct stat found;
        if (entry->d_name[0] == '.' || fstatat(directory, entry->d_name, &found, 0))
            continue;
        struct timespec at = found.st_mtim;
        long order = at.tv_sec != best.tv_sec ? at.tv_sec - best.tv_sec : at.tv_nsec - best.tv_nsec;
        if (order == 0)
            order = strcmp(entry->d_name, name);
        if (!name[0] || order < 0) {
            best = at;
            snprintf(name, size, "%s", entry->d_name);
        }
    }
    return closedir(list);
}

static int take(int directory)
{
    char name[300], bytes[4096];
    ssize_t count;
    if (oldest(directory, name, sizeof name))
        return failed("cannot list the queue");
    if (!name[0])
        return puts("the queue is empty") < 0;
    int file = openat(directory, name, O_RDONLY);
    if (file < 0)
        return failed(name);
    while ((count = read(file, bytes, sizeof bytes)) > 0)
        fwrite(bytes, 1, (size_t)count, stdout);
    close(file);
    if (count < 0)
        return failed(name);
    return unlinkat(directory, name, 0) || fsync(directory) ? failed(name) : 0;
}

int main(int count, char **words)
{
    int directory = count > 1 ? open(words[1], O_RDONLY | O_DIRECTORY) : -1;
    if (count > 1 && directory < 0)
        return failed(words[1]);
    if (count == 4 && strcmp(words[2], "deliver") == 0 && words[3][0] != '.')
        return deliver(directory, words[3]);
    if (count == 3 && strcmp(words[2], "take") == 0)
        return take(directory);
    fprintf(stderr, "usage: mail_queue DIR deliver NAME | mail_queue DIR take\n");
    return 2;
}
