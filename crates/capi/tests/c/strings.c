/* The functions of <string.h> that work inside a block, compared with the originals outside. */
#include "check.h"
#include <malloc.h>
#include <selvedge/short.h>
#include <stdlib.h>

#define SIZE 600

static char *durable;
static char ordinary[SIZE], expected[SIZE];
/* Not constants, since the compiler would remove the calls. */
static const char *volatile texts[] = {"", "a", "ab", "abc", "seven..", "eight...", "abd", "\xff"};
#define TEXTS (sizeof texts / sizeof *texts)

static int sign(int n) { return (n > 0) - (n < 0); }

static void comparisons(void)
{
    for (size_t i = 0; i < TEXTS; i++)
        for (size_t j = 0; j < TEXTS; j++)
            for (size_t skip = 0; skip < 9; skip++) {
                const char *one = texts[i], *other = texts[j];
                char *there = durable + skip;
                size_t size = strlen(other) < strlen(one) ? strlen(other) : strlen(one);
                int text, two, bytes;
                size_t len, three;
                void *found;
                patomic {
                    strcpy(there, other);
                    text = strcmp(one, there);
                    two = strncmp(one, there, 2);
                    bytes = memcmp(one, there, size);
                    len = strlen(there);
                    three = strnlen(there, 3);
                    found = memchr(there, 'b', len);
                }
                CHECK(!strcmp(there, other));
                CHECK(sign(text) == sign(strcmp(one, other)));
                CHECK(sign(two) == sign(strncmp(one, other, 2)));
                CHECK(sign(bytes) == sign(memcmp(one, other, size)));
                CHECK(len == strlen(other) && three == strnlen(other, 3));
                CHECK(found == memchr(there, 'b', len));
            }
}

/* To all kinds of memory, from bytes that the block has written, and longer than a chunk. */
static void copies(void)
{
    char longer[SIZE];
    memset(longer, 'x', SIZE - 10);
    longer[SIZE - 10] = 0;
    patomic {
        char mine[SIZE];
        strcpy(mine, longer);
        strcpy(durable, mine);
        strncpy(ordinary, durable, SIZE);
        strcpy(mine, "end");
        strcat(ordinary, mine);
        durable[1] = 0;
        strcat(durable, "tail");
    }
    strncpy(expected, longer, SIZE);
    strcat(expected, "end");
    CHECK(!memcmp(ordinary, expected, SIZE));
    CHECK(!strcmp(durable, "xtail"));
    patomic {
        strcpy(durable, "nothing");
        strcpy(ordinary, "nothing");
        __transaction_cancel;
    }
    CHECK(!memcmp(ordinary, expected, SIZE) && !strcmp(durable, "xtail"));
}

/* memcpy, memmove and memset, which _FORTIFY_SOURCE makes functions that check sizes. */
static void bytes(void)
{
    volatile size_t unknown = SIZE; /* to the compiler */
    size_t most = unknown, size = most - 20;
    char older[SIZE], seen[2];
    memset(older, 'o', SIZE);
    memset(ordinary, '.', SIZE);
    patomic {
        char mine[SIZE];
        memset(mine, 'm', size);
        memset(mine + 10, 'n', 10);
        memcpy(durable, mine, size);
        memmove(durable + 5, durable, size);
        memmove(durable + 8, durable + 9, size - 100);
        memcpy(ordinary, older, size);
        memcpy(older, durable, 100);
        memset(ordinary + 3, 'q', most - size);
        seen[0] = older[20];
        memcpy(&seen[1], ordinary + 4, 1);
    }
    memset(expected, 'm', SIZE);
    memset(expected + 14, 'n', 10);
    CHECK(!memcmp(durable, expected, size + 5 - 100 + 3));
    CHECK(!memcmp(older, expected, 100) && older[100] == 'o');
    CHECK(seen[0] == 'n' && seen[1] == 'q');
    memset(expected, 'o', size);
    memset(expected + 3, 'q', most - size);
    memset(expected + size, '.', most - size);
    CHECK(!memcmp(ordinary, expected, SIZE));
    patomic {
        memset(durable, 'z', size);
        memcpy(ordinary, durable, most);
        memcpy(older, ordinary, most);
        __transaction_cancel;
    }
    CHECK(!memcmp(ordinary, expected, SIZE) && durable[0] == 'm' && older[0] == 'm');
    patomic { strcpy(durable, "xtail"); }
}

/* A copy is freed if the block fails. */
static void duplicates(void)
{
    size_t before = 0;
    for (int round = 0; round < 3000; round++) {
        int cancels = round % 3 == 0;
        char *copy = NULL, *three = NULL;
        patomic {
            copy = strdup(durable);
            three = strndup(copy, 3);
            if (copy)
                copy[0] = 'X';
            if (cancels)
                __transaction_cancel;
        }
        if (!cancels) {
            CHECK(!strcmp(copy, "Xtail") && !strcmp(three, "xta"));
            free(copy);
            free(three);
        }
        if (round == 1000)
            before = mallinfo2().uordblks;
    }
    CHECK(mallinfo2().uordblks < before + 2000 * 16);
}

int main(void)
{
    durable = selvedge_root("text", SIZE);
    CHECK(durable != NULL);
    /* First, while the library has no log to truncate. */
    strcpy(durable, "xtail");
    duplicates();
    comparisons();
    copies();
    bytes();
    return 0;
}
