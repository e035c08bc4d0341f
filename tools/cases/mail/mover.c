/* Moves all messages from one mailbox to another, one at a time.
 *
 *   mover maildir|mbox fsync|groups FROM TO
 *
 * The message in the new mailbox precedes its removal from the old one: by fsync, or by a patchgroup
 * for each. In a Maildir the message gets a second name, as IMAP servers do. In an mbox it is copied
 * and then marked; the end empties the file.
 *
 *   gcc mover.c $(pkg-config --cflags --libs selvedge-pg) -o mover */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <selvedge/patchgroup.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int has_groups;
static pg_t copies = -1, removals = -1;

static void fail(const char *what)
{
    fprintf(stderr, "mover: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int check(int result, const char *what)
{
    if (result < 0)
        fail(what);
    return result;
}

/* Waits until the changes of a file or directory are durable, unless groups order them. */
static void store(int file, const char *what)
{
    if (!has_groups)
        check(fsync(file), what);
}

/* From now on the changes are those of a copy. */
static void begin_copy(const char *dir)
{
    if (!has_groups)
        return;
    copies = check(pg_create(dir), dir);
    removals = check(pg_create(dir), dir);
    check(pg_engage(copies), "engage");
}

/* From now on the changes follow those of the copy. */
static void begin_removal(void)
{
    if (!has_groups)
        return;
    check(pg_disengage(copies), "disengage");
    check(pg_depend(removals, copies), "depend");
    check(pg_engage(removals), "engage");
}

static void end_removal(void)
{
    if (!has_groups)
        return;
    pg_close(copies);
    pg_close(removals);
}

/* Gives a message a second name in the other mailbox, and removes the first one. */
static void move_file(int from, int to, const char *name, const char *dir)
{
    begin_copy(dir);
    check(linkat(from, name, to, name, 0), name);
    store(to, dir);
    begin_removal();
    check(unlinkat(from, name, 0), name);
    store(from, dir);
    end_removal();
}

static int in(const char *dir, const char *part)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, part);
    return check(open(path, O_RDONLY | O_DIRECTORY), path);
}

static void move_maildir(const char *from_dir, const char *to_dir)
{
    int from = in(from_dir, "new"), to = in(to_dir, "new");
    struct dirent **names;
    char path[4096];
    snprintf(path, sizeof path, "%s/new", from_dir);
    int count = check(scandir(path, &names, NULL, alphasort), path);
    for (int i = 0; i < count; i++)
        if (names[i]->d_name[0] != '.')
            move_file(from, to, names[i]->d_name, to_dir);
}

/* The directory of a file. */
static const char *place(const char *path)
{
    static char dir[4096];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash)
        *slash = 0;
    return slash ? dir : ".";
}

/* Empties a mailbox whose messages are all copied. This follows all changes of `all`. */
static void end_mbox(int box, const char *name, pg_t all)
{
    if (has_groups) {
        removals = check(pg_create(place(name)), name);
        check(pg_disengage(all), "disengage");
        check(pg_depend(removals, all), "depend");
        check(pg_engage(removals), "engage");
    }
    check(ftruncate(box, 0), name);
    store(box, name);
}

static void move_mbox(const char *from, const char *to)
{
    int old = check(open(from, O_RDWR), from), new = check(open(to, O_WRONLY | O_APPEND), to);
    pg_t all = has_groups ? check(pg_create(place(to)), to) : -1;
    struct stat status;
    if (has_groups)
        check(pg_engage(all), "engage");
    check(fstat(old, &status), from);
    size_t size = (size_t)status.st_size;
    char *text = calloc(1, size + 1);
    if (!text || read(old, text, size) != (ssize_t)size)
        fail(from);
    for (char *message = text, *next; *message; message = next) {
        char *mark = strstr(message, "\nX-Status: ");
        next = strstr(message, "\n\nFrom ");
        next = next ? next + 2 : text + size;
        begin_copy(place(to));
        if (write(new, message, (size_t)(next - message)) != next - message)
            fail(to);
        store(new, to);
        begin_removal();
        if (mark && mark < next && pwrite(old, "D", 1, mark + 11 - text) != 1)
            fail(from);
        store(old, from);
        end_removal();
    }
    end_mbox(old, from, all);
}

int main(int count, char **words)
{
    if (count != 5) {
        fprintf(stderr, "usage: mover maildir|mbox fsync|groups FROM TO\n");
        return 2;
    }
    has_groups = !strcmp(words[2], "groups");
    if (!strcmp(words[1], "maildir"))
        move_maildir(words[3], words[4]);
    else
        move_mbox(words[3], words[4]);
    return 0;
}
