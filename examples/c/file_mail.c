/* Moves messages from one maildir to another of the same mount, with a line added at their head.
 *
 *   file_mail FROM TO NAME...
 *
 * After a crash each message is in FROM, in TO or in both, and whole. A program without patchgroups
 * needs an fsync of each new file, and of the directory with the names. This one never waits
 * for the disk: it states which changes must be there before others.
 *
 *   gcc file_mail.c $(pkg-config --cflags --libs selvedge-pg) -o file_mail */
#include <errno.h>
#include <fcntl.h>
#include <selvedge/patchgroup.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failed(const char *what)
{
    fprintf(stderr, "file_mail: %s: %s\n", what, strerror(errno));
    return 1;
}

/* The file of a message. */
static const char *path(const char *maildir, const char *part, const char *name)
{
    static char text[2][4096];
    static int next;
    next = !next;
    snprintf(text[next], sizeof text[next], "%s/%s/%s", maildir, part, name);
    return text[next];
}

/* Copies a message to a temporary file of the other maildir. */
static int copy(const char *from, const char *to, const char *name)
{
    char bytes[4096];
    size_t count;
    FILE *old = fopen(path(from, "new", name), "r");
    FILE *new = old ? fopen(path(to, "tmp", name), "w") : NULL;
    int is_bad = !new;
    if (new) {
        fprintf(new, "X-Filed-From: %s\n", from);
        while ((count = fread(bytes, 1, sizeof bytes, old)))
            fwrite(bytes, 1, count, new);
        is_bad = ferror(old) || ferror(new);
        is_bad |= fclose(new) != 0;
    }
    if (old)
        fclose(old);
    return is_bad ? failed(name) : 0;
}

/* Copies the messages: the names after the contents. */
static int copy_all(pg_t group, char **names, const char *from, const char *to)
{
    if (pg_engage(group))
        return failed(to);
    for (char **name = names; *name; name++)
        if (copy(from, to, *name))
            return 1;
    if (pg_barrier(group))
        return failed(to);
    for (char **name = names; *name; name++)
        if (rename(path(to, "tmp", *name), path(to, "new", *name)))
            return failed(*name);
    return pg_disengage(group) ? failed(to) : 0;
}

/* Removes the messages, after their copies. */
static int remove_all(pg_t group, pg_t copies, char **names, const char *from)
{
    if (pg_depend(group, copies) || pg_engage(group))
        return failed(from);
    for (char **name = names; *name; name++)
        if (unlink(path(from, "new", *name)))
            return failed(*name);
    return pg_disengage(group) ? failed(from) : 0;
}

int main(int count, char **words)
{
    struct stat old, new;
    if (count < 4) {
        fprintf(stderr, "usage: file_mail FROM TO NAME...\n");
        return 2;
    }
    const char *from = words[1], *to = words[2];
    if (stat(from, &old))
        return failed(from);
    if (stat(to, &new))
        return failed(to);
    if (old.st_dev != new.st_dev) { /* There is no order between two mounts. */
        fprintf(stderr, "file_mail: %s and %s are not in the same mount\n", from, to);
        return 1;
    }
    pg_t copies = pg_create(to), removals = pg_create(from);
    if (copies < 0 || removals < 0)
        return failed(copies < 0 ? to : from);
    return copy_all(copies, words + 3, from, to) || remove_all(removals, copies, words + 3, from);
}
