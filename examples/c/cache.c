/* A cache of pages for several programs at once: a page is the value of a key, and a file lists what was
 * put there. The same cache as that of rust/cache.rs.
 *
 *     cache SOCKET put NAME <PAGE    stores a page, and appends its name to the list
 *     cache SOCKET show NAME         prints a page
 *     cache SOCKET names             prints the names of all pages
 *     cache SOCKET list              prints the list */
#include <selvedge/files.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(void)
{
    fprintf(stderr, "cache: %s\n", selvedge_message());
    exit(1);
}

static void put(selvedge_store *store, selvedge_kv *pages, const char *name)
{
    static char page[1 << 20];
    size_t size = fread(page, 1, sizeof page, stdin);
    if (selvedge_kv_put(pages, name, strlen(name), page, size) != 0)
        fail();
    char line[256];
    int length = snprintf(line, sizeof line, "%s\n", name);
    selvedge_file *list = selvedge_file_open(store, "cache/list", O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (list == NULL || selvedge_file_write(list, line, (size_t)length) != length)
        fail();
    if (selvedge_file_sync(list) != 0) /* the page is durable, too */
        fail();
    selvedge_file_close(list);
}

/* The page is read where it is in the store. */
static void print_page(const void *page, size_t size, void *argument)
{
    fwrite(page, 1, size, argument);
}

static int print_name(const void *name, size_t size, void *argument)
{
    fwrite(name, 1, size, argument);
    fputc('\n', argument);
    return 0;
}

static void list(selvedge_store *store)
{
    char part[4096];
    ssize_t size;
    selvedge_file *list = selvedge_file_open(store, "cache/list", O_RDONLY, 0);
    if (list == NULL)
        fail();
    while ((size = selvedge_file_read(list, part, sizeof part)) > 0)
        fwrite(part, 1, (size_t)size, stdout);
    if (size < 0)
        fail();
    selvedge_file_close(list);
}

int main(int count, char **words)
{
    if (count < 3) {
        fprintf(stderr, "usage: cache SOCKET put NAME | show NAME | names | list\n");
        return 2;
    }
    selvedge_store *store = selvedge_store_connect(words[1]);
    if (store == NULL)
        fail();
    selvedge_kv *pages = selvedge_kv_open(store, "cache/pages", O_CREAT, 0644);
    if (pages == NULL)
        fail();
    if (count == 4 && strcmp(words[2], "put") == 0) {
        put(store, pages, words[3]);
    } else if (count == 4 && strcmp(words[2], "show") == 0) {
        if (selvedge_kv_borrow(pages, words[3], strlen(words[3]), print_page, stdout) != 0)
            fail();
    } else if (strcmp(words[2], "names") == 0) {
        if (selvedge_kv_list(pages, print_name, stdout) != 0)
            fail();
    } else {
        list(store);
    }
    selvedge_kv_close(pages);
    if (selvedge_store_close(store) != 0)
        fail();
    return 0;
}
