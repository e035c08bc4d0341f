/* All calls of the heap, inside and outside of transactions. */
#include "check.h"
#include <errno.h>
#include <stdint.h>
#include <selvedge/short.h>

struct roots {
    char *a, *b, *c;
    void *large;
};

static pstatic struct roots roots;
static int messages;

static void note(const char *message, void *argument)
{
    (void)message;
    *(int *)argument += 1;
}

static int is_all(const char *block, int value, size_t len)
{
    for (size_t n = 0; n < len; n++)
        if (block[n] != value)
            return 0;
    return 1;
}

/* A failed call has reported its error once. */
#define REFUSED(call, error)                         \
    do {                                             \
        int before = messages;                       \
        errno = 0;                                   \
        CHECK(call);                                 \
        CHECK(errno == (error));                     \
        CHECK(messages == before + 1);               \
        CHECK(selvedge_message()[0] != 0);           \
    } while (0)

static void outside(void)
{
    char *volatile_pointer = NULL;
    CHECK(pmalloc(100, &roots.a) == roots.a && roots.a != NULL);
    CHECK((uintptr_t)roots.a % 16 == 0 && pmalloc_usable_size(roots.a) >= 100);
    memset(roots.a, 5, 100);
    CHECK(pmalloc_set(64, &roots.b, 'x') == roots.b && is_all(roots.b, 'x', 64));
    CHECK((uintptr_t)roots.b % 64 == 0);
    CHECK(pcalloc(10, 1000, &roots.c) == roots.c && is_all(roots.c, 0, 10000));
    CHECK(pmalloc(0, &volatile_pointer) == volatile_pointer && volatile_pointer != NULL);
    CHECK(pfree(&volatile_pointer) == 0 && volatile_pointer == NULL);
    /* Smaller, larger, and from nothing. */
    CHECK(prealloc(90, &roots.a) == roots.a && is_all(roots.a, 5, 90));
    CHECK(prealloc(100000, &roots.a) == roots.a && is_all(roots.a, 5, 90));
    CHECK(pmalloc_usable_size(roots.a) >= 100000);
    CHECK(prealloc(10, &roots.a) == roots.a && is_all(roots.a, 5, 10));
    CHECK(pmalloc_usable_size(roots.a) < 100);
    CHECK(prealloc(10, &volatile_pointer) == volatile_pointer && volatile_pointer != NULL);
    CHECK(pfree(&volatile_pointer) == 0);
    /* Addresses at which no block begins. */
    char *again = roots.b, *inside = roots.c + 16, here;
    char *foreign = &here;
    CHECK(pfree(&roots.b) == 0 && roots.b == NULL);
    CHECK(pfree(&roots.b) == 0);
    REFUSED(pfree(&again) == -1, EINVAL);
    CHECK(again != NULL);
    REFUSED(pfree(&inside) == -1, EINVAL);
    REFUSED(pfree(&foreign) == -1 && foreign == &here, EINVAL);
    REFUSED(pfree(NULL) == -1, EINVAL);
    /* Durable memory outside of the heap. */
    char *variable = (char *)&roots, *region = NULL;
    REFUSED(pfree(&variable) == -1 && variable == (char *)&roots, EINVAL);
    REFUSED(prealloc(10, &variable) == NULL, EINVAL);
    REFUSED(pmalloc_usable_size(&roots) == 0, EINVAL);
    region = pmap(&roots.large, 4096, PROT_READ | PROT_WRITE, 0);
    CHECK(region != NULL && region == roots.large);
    REFUSED(pfree(&roots.large) == -1 && roots.large == region, EINVAL);
    CHECK(punmap(&roots.large, 0) == 0 && roots.large == NULL);
    REFUSED(prealloc(10, &again) == NULL, EINVAL);
    REFUSED(prealloc(10, &foreign) == NULL, EINVAL);
    REFUSED(prealloc(10, NULL) == NULL, EINVAL);
    REFUSED(pmalloc_usable_size(again) == 0, EINVAL);
    REFUSED(pmalloc_usable_size(&here) == 0, EINVAL);
    /* More bytes than there are addresses, numbers or disk. */
    REFUSED(pmalloc((size_t)1 << 45, &roots.large) == NULL, ENOMEM);
    REFUSED(pmalloc(SIZE_MAX, &roots.large) == NULL, ENOMEM);
    REFUSED(pcalloc(SIZE_MAX / 2, 3, &roots.large) == NULL, ENOMEM);
    CHECK(roots.large == NULL);
    CHECK(pfree(&roots.a) == 0 && pfree(&roots.c) == 0);
}

/* Blocks that a transaction allocates and fills. */
static void filled(void)
{
    /* A block that is larger than a log, and filled. */
    patomic { pmalloc_set(8 << 20, &roots.large, 3); }
    CHECK(is_all(roots.large, 3, 8 << 20));
    /* A block that the program fills by itself, by each kind of store. */
    static char pattern[1 << 20];
    memset(pattern, 'p', sizeof pattern);
    long *words = NULL;
    patomic {
        pfree(&roots.large);
        pmalloc(8 << 20, &roots.large);
        for (int n = 0; n < 8; n++)
            memcpy((char *)roots.large + n * sizeof pattern, pattern, sizeof pattern);
        words = pmalloc(4 << 20, NULL);
        for (int n = 0; n < 512 << 10; n++)
            words[n] = n;
        for (int n = 0; n < 512 << 10; n += 2)
            words[n] += words[n + 1];
        memset((char *)roots.large + 5, 'q', 3 << 20);
        pmalloc(3 << 20, &roots.c);
        strcpy(roots.c, "text");
        memmove(roots.c + 1000, words, 2 << 20);
        memmove(roots.c + 2, roots.c, 5);
    }
    char *large_block = roots.large;
    CHECK(is_all(large_block, 'p', 5) && is_all(large_block + 5, 'q', 3 << 20));
    CHECK(is_all(large_block + 5 + (3 << 20), 'p', (5 << 20) - 5));
    for (int n = 0; n < 512 << 10; n += 2)
        CHECK(words[n] == 2 * n + 1 && words[n + 1] == n + 1);
    CHECK(!memcmp(roots.c, "tetext", 7) && !memcmp(roots.c + 1000, words, 2 << 20));
    CHECK(pfree(&words) == 0);
}

/* A block that has become longer in its place is all of the transaction. */
static void longer_inside(void)
{
    static char text[200];
    memset(text, 'A', sizeof text);
    char seen = 0, *before = NULL;
    patomic {
        before = pmalloc(5000, &roots.c);
        memset(roots.c, '.', 5000);
        prealloc(8000, &roots.c);
        memcpy(roots.c + 4900, text, 200);
        seen = roots.c[4950];
        roots.c[4960] = 'Z';
    }
    CHECK(roots.c == before && seen == 'A');
    CHECK(roots.c[4899] == '.' && is_all(roots.c + 4900, 'A', 60) && roots.c[4960] == 'Z');
    CHECK(is_all(roots.c + 4961, 'A', 139) && pfree(&roots.c) == 0);
    patomic {
        pmalloc(20, &roots.c);
        size_t all = pmalloc_usable_size(roots.c);
        memset(roots.c, '.', all);
        memcpy(roots.c + 16, text, 12);
        seen = roots.c[18];
        roots.c[19] = 'Z';
    }
    CHECK(seen == 'A' && roots.c[19] == 'Z' && roots.c[20] == 'A' && pfree(&roots.c) == 0);
}

/* The address is a multiple of 64 if the new size is. */
static void aligned(void)
{
    static const size_t sizes[][2] = {{100, 64}, {150, 128}, {1300, 1280}, {48, 64}, {5000, 6400}};
    char *blocks[8] = {NULL};
    for (int n = 0; n < 5; n++) {
        for (int block = 0; block < 8; block++) {
            CHECK(pmalloc_set(sizes[n][0], &blocks[block], 'a') != NULL);
            CHECK((uintptr_t)prealloc(sizes[n][1], &blocks[block]) % 64 == 0);
            CHECK(is_all(blocks[block], 'a', sizes[n][0] < sizes[n][1] ? sizes[n][0] : sizes[n][1]));
        }
        for (int block = 0; block < 8; block++)
            CHECK(pfree(&blocks[block]) == 0);
    }
}

static void cancelled_inside(void)
{
    /* The cancel of an inner transaction undoes its stores to a block of the outer one. */
    patomic {
        pfree(&roots.c);
        char *kept = pmalloc(100, &roots.c);
        memset(kept, 'k', 100);
        patomic {
            kept[50] = 'x';
            memset(kept, 'x', 10);
            prealloc(2000, &roots.c);
            roots.c[0] = 'y';
            __transaction_cancel;
        }
        kept[99]++;
    }
    CHECK(is_all(roots.c, 'k', 99) && roots.c[99] == 'l');
    CHECK(pmalloc_usable_size(roots.c) < 2000 && pfree(&roots.c) == 0);
}

/* A transaction continues after a failed call. */
static void refused_inside(void)
{
    char *again = NULL;
    int freed = 1, refused = 0, large = 0;
    patomic {
        again = roots.b;
        freed = pfree(&roots.b);
        refused = pfree(&again);
        roots.a[0] = 'z';
    }
    CHECK(freed == 0 && refused == -1 && roots.b == NULL && roots.a[0] == 'z');
    /* A block that is unavailable: the call returns an error, and the transaction continues. */
    patomic {
        roots.a[1] = 'z';
        large = pmalloc((size_t)1 << 45, &roots.c) == NULL;
        roots.a[2] = 'z';
    }
    CHECK(large && roots.c == NULL && roots.a[1] == 'z' && roots.a[2] == 'z');
    /* A block for which the heap must grow. */
    patomic {
        roots.a[3] = 'z';
        large = pmalloc((size_t)100 << 20, &roots.c) != NULL;
        pfree(&roots.c);
    }
    CHECK(large && roots.c == NULL && roots.a[3] == 'z');
}

static void inside(void)
{
    char *mine = NULL;
    patomic {
        pmalloc(100, &roots.a);
        pmalloc_set(100, &roots.b, 'y');
        pcalloc(100, 1, &mine);
        roots.a[99] = mine[99] + 1;
    }
    CHECK(roots.a[99] == 1 && is_all(roots.b, 'y', 100) && is_all(mine, 0, 100));
    filled();
    longer_inside();
    cancelled_inside();
    memset(roots.large, 3, 8 << 20);
    refused_inside();
    char *before = roots.a;
    patomic {
        prealloc(5000, &roots.a);
        pfree(&roots.large);
        pfree(&mine);
        __transaction_cancel;
    }
    CHECK(roots.a == before && roots.large != NULL && mine != NULL);
    CHECK(is_all(mine, 0, 100) && roots.a[0] == 'z');
    patomic {
        prealloc(5000, &roots.a);
        pfree(&roots.large);
        pfree(&mine);
    }
    CHECK(roots.a != before && roots.a[0] == 'z' && roots.a[99] == 1);
    CHECK(roots.large == NULL && mine == NULL);
    CHECK(pfree(&roots.a) == 0);
}

static void named(void)
{
    long *one = NULL;
    CHECK(selvedge_root("one", 0) == NULL);
    patomic {
        one = selvedge_root("one", 16);
        one[1] = 4;
    }
    CHECK(one != NULL && one == selvedge_root("one", 16) && one == selvedge_root("one", 0));
    CHECK(one[0] == 0 && one[1] == 4);
    REFUSED(selvedge_root("one", 17) == NULL, EINVAL);
    REFUSED(selvedge_root("", 17) == NULL, EINVAL);
    REFUSED(selvedge_root("selvedge.base", 0) == NULL, EINVAL);
    CHECK(strstr(selvedge_message(), "is the library's"));
    REFUSED(selvedge_root(NULL, 17) == NULL, EINVAL);
    char name[200];
    memset(name, 'n', sizeof name);
    name[199] = 0;
    REFUSED(selvedge_root(name, 17) == NULL, EINVAL);
    CHECK(selvedge_root_remove("one") == 0);
    REFUSED(selvedge_root_remove("one") == -1, ENOENT);
    CHECK(!strcmp(selvedge_message(), "there is no root one"));
    /* The message has the program's address. */
    void *block = pmalloc(100, NULL), *inside = (char *)block + 1, *outside = (char *)block;
    char address[32];
    CHECK(block != NULL && snprintf(address, sizeof address, "at %p:", inside) > 0);
    REFUSED(pfree(&inside) == -1, EINVAL);
    CHECK(strstr(selvedge_message(), address));
    CHECK(pfree(&outside) == 0);
    CHECK(selvedge_root("one", 0) == NULL);
}

int main(void)
{
    CHECK(selvedge_start() == 0);
    selvedge_set_message_hook(note, &messages);
    for (int n = 0; n < 3; n++) {
        outside();
        inside();
        named();
        aligned();
    }
    int counted = messages;
    selvedge_set_message_hook(NULL, NULL);
    CHECK(selvedge_root("", 1) == NULL && messages == counted);
    return 0;
}
