/* Copies in all directions, and memory that is allocated and freed in transactions. */
#include "check.h"
#include <malloc.h>
#include <stdint.h>
#include <selvedge/short.h>

#define SIZE 6000

static unsigned char ordinary[SIZE], expected[SIZE], expected_durable[SIZE];
static unsigned char *durable;

static unsigned long seed = 1;

static unsigned random_below(unsigned end)
{
    seed = seed * 6364136223846793005ul + 1442695040888963407ul;
    return (seed >> 33) % end;
}

static void copies(void)
{
    for (int n = 0; n < SIZE; n++)
        ordinary[n] = expected[n] = random_below(256);
    memcpy(durable, ordinary, SIZE);
    memcpy(expected_durable, expected, SIZE);
    for (int round = 0; round < 3000; round++) {
        unsigned len = random_below(round % 10 ? 100 : 2500);
        unsigned from = random_below(SIZE - len), to = random_below(SIZE - len);
        unsigned char byte = random_below(256), mine[100];
        unsigned few = len < sizeof mine ? len : sizeof mine;
        int cancels = random_below(8) == 0;
        patomic {
            memmove(ordinary + to, ordinary + from, len);
            memcpy(durable + to, ordinary + from, len);
            memmove(durable + from, durable + to, len);
            memset(durable + to, byte, len / 2);
            memcpy(mine, durable + from, few);
            memcpy(ordinary + to, mine, few);
            if (cancels)
                __transaction_cancel;
        }
        if (!cancels) {
            memmove(expected + to, expected + from, len);
            memcpy(expected_durable + to, expected + from, len);
            memmove(expected_durable + from, expected_durable + to, len);
            memset(expected_durable + to, byte, len / 2);
            memcpy(mine, expected_durable + from, few);
            memcpy(expected + to, mine, few);
        }
        CHECK(!memcmp(ordinary, expected, SIZE));
        CHECK(!memcmp(durable, expected_durable, SIZE));
    }
}

struct node {
    struct node *next;
    long value;
};

static struct node *list;

/* Frees, and a cancelled transaction, return their memory to the C library. */
static void allocations(void)
{
    size_t before = 0;
    for (int round = 0; round < 3000; round++) {
        int cancels = round % 3 == 0;
        patomic {
            for (int n = 0; n < 10; n++) {
                struct node *node = malloc(sizeof *node);
                node->next = list;
                node->value = n;
                list = node;
            }
            long *gone = calloc(3, sizeof *gone);
            if (gone[0] || gone[1] || gone[2])
                abort();
            gone[0] = 1;
            free(gone);
            if (cancels)
                __transaction_cancel;
        }
        CHECK(cancels ? list == NULL : list->value == 9);
        patomic {
            while (list) {
                struct node *node = list;
                list = node->next;
                free(node);
            }
        }
        /* The library has allocated all that it keeps. */
        if (round == 1000)
            before = mallinfo2().uordblks;
    }
    /* Its other thread may allocate some at any time: less than a node in each round. A node takes
     * twice its size. */
    CHECK(mallinfo2().uordblks < before + 2000 * 2 * sizeof(struct node));
}

/* More bytes than a size_t can count. */
static void too_large(void)
{
    volatile size_t most = SIZE_MAX;
    size_t count = most;
    void *memory = &list;
    patomic { memory = calloc(count, 4); }
    CHECK(memory == NULL);
}

int main(void)
{
    durable = selvedge_root("bytes", SIZE);
    CHECK(durable != NULL);
    copies();
    allocations();
    too_large();
    return 0;
}
