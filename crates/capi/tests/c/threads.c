/* Threads move amounts between accounts, in durable memory, in ordinary memory and on the stack of
 * the first thread. They take nodes from a shared list and use them without transactions. Conflicts
 * are frequent. */
#include "check.h"
#include <pthread.h>
#include <selvedge/short.h>

#define ACCOUNTS 16
#define THREADS 4
#define ROUNDS 4000

static long *durable;
static long ordinary[ACCOUNTS];
static long *on_stack;

struct node {
    struct node *next;
    long value;
};

static struct node *list;
static long taken[THREADS];

static unsigned below(unsigned long *seed, unsigned end)
{
    *seed = *seed * 6364136223846793005ul + 1442695040888963407ul;
    return (*seed >> 33) % end;
}

SELVEDGE_SAFE static long sum(const long *accounts)
{
    long sum = 0;
    for (int n = 0; n < ACCOUNTS; n++)
        sum += accounts[n];
    return sum;
}

/* Puts a node into the list, or takes all out and counts them. No other thread may read or change a
 * node that was taken out. */
static void nodes(unsigned long *seed, long *counted)
{
    if (below(seed, 4)) {
        patomic {
            struct node *node = malloc(sizeof *node);
            node->value = 1;
            node->next = list;
            list = node;
        }
        return;
    }
    struct node *mine;
    patomic {
        mine = list;
        list = NULL;
        for (struct node *node = mine; node; node = node->next)
            node->value += 1;
    }
    while (mine) {
        struct node *node = mine;
        mine = node->next;
        CHECK(node->value == 2);
        node->value = -1000;
        *counted += 1;
        node->next = NULL;
        free(node);
    }
}

/* A thread that only reads. */
static void readers(void)
{
    long wrong = 0;
    patomic {
        for (struct node *node = list; node; node = node->next)
            wrong += node->value != 1;
    }
    CHECK(wrong == 0);
}

static void *work(void *argument)
{
    long me = (long)argument, added = 0;
    unsigned long seed = me + 1;
    (void)added;
    for (int round = 0; round < ROUNDS; round++) {
        unsigned from = below(&seed, ACCOUNTS), to = below(&seed, ACCOUNTS);
        long what = below(&seed, 100), total = 0;
        switch (round % 4) {
        case 0:
            patomic {
                durable[from] -= what;
                durable[to] += what;
                ordinary[to] -= what;
                ordinary[from] += what;
            }
            break;
        case 1:
            patomic {
                on_stack[from] -= what;
                on_stack[to] += what;
                durable[ACCOUNTS] += 1;
            }
            break;
        case 2:
            patomic { total = sum(durable) + sum(ordinary) + sum(on_stack); }
            CHECK(total == 0);
            break;
        default:
            nodes(&seed, &taken[me]);
            readers();
        }
    }
    return NULL;
}

int main(void)
{
    long accounts[ACCOUNTS] = {0};
    on_stack = accounts;
    durable = selvedge_root("accounts", (ACCOUNTS + 1) * sizeof *durable);
    CHECK(durable != NULL);
    CHECK(sum(durable) == 0);
    long before = durable[ACCOUNTS];
    pthread_t threads[THREADS];
    for (long n = 1; n < THREADS; n++)
        CHECK(!pthread_create(&threads[n], NULL, work, (void *)n));
    work(NULL);
    for (int n = 1; n < THREADS; n++)
        CHECK(!pthread_join(threads[n], NULL));
    CHECK(sum(durable) == 0 && sum(ordinary) == 0 && sum(accounts) == 0);
    CHECK(durable[ACCOUNTS] == before + THREADS * ROUNDS / 4);
    return 0;
}
