/* A tree of names and a queue of numbers that always agree, by one transaction for both.
 *
 *   names add NUMBER NAME    stores the name, and queues the number
 *   names next               takes a number from the queue, and prints its name
 */
#include <errno.h>
#include <selvedge/structures.h>
#include <stdio.h>
#include <string.h>

static int failed(const char *what)
{
    fprintf(stderr, "names: cannot %s: %s\n", what, selvedge_message());
    return 1;
}

/* Both or neither: a block that is cancelled changes nothing. */
static int add(selvedge_tree *names, selvedge_queue *waiting, const char *number, const char *name)
{
    size_t digits = strlen(number), letters = strlen(name);
    int is_done = 0;
    SELVEDGE_ATOMIC {
        if (selvedge_tree_put(names, number, digits, name, letters)
            || selvedge_queue_push(waiting, number, digits))
            __transaction_cancel;
        is_done = 1;
    }
    return is_done ? 0 : failed("add a name");
}

static int next(selvedge_tree *names, selvedge_queue *waiting)
{
    char number[32], name[128];
    ssize_t digits = selvedge_queue_pop(waiting, number, sizeof number);
    if (digits < 0)
        return errno == ENOENT ? puts("nobody waits") < 0 : failed("take a number");
    ssize_t letters = selvedge_tree_get(names, number, (size_t)digits, name, sizeof name);
    if (letters < 0)
        return failed("find a name");
    printf("%.*s: %.*s\n", (int)digits, number, (int)letters, name);
    return 0;
}

int main(int count, char **words)
{
    selvedge_tree *names = selvedge_tree_root("names");
    selvedge_queue *waiting = selvedge_queue_root("waiting");
    if (!names || !waiting)
        return failed("open durable memory");
    if (count == 4 && strcmp(words[1], "add") == 0)
        return add(names, waiting, words[2], words[3]);
    if (count == 2 && strcmp(words[1], "next") == 0)
        return next(names, waiting);
    fprintf(stderr, "usage: names add NUMBER NAME | names next\n");
    return 2;
}
