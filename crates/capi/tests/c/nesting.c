/* Transactions inside others, and transactions that are cancelled. */
#include "check.h"
#include <selvedge/short.h>

struct state {
    long words[64];
};

static struct state *durable;
static long ordinary[8];

/* Writes through a pointer that the compiler cannot analyse. */
SELVEDGE_SAFE __attribute__((noinline)) static void add(long *to, long what) { *to += what; }

SELVEDGE_SAFE __attribute__((noinline)) static long sum(const long *words, int count)
{
    long sum = 0;
    for (int n = 0; n < count; n++)
        sum += words[n];
    return sum;
}

/* A cancelled transaction leaves no store in durable memory, in ordinary memory or in the variables
 * of its function. */
__attribute__((noinline)) static int cancelled(int how)
{
    long mine[4] = {1, 2, 3, 4};
    int steps = 7;
    patomic {
        for (int n = 0; n < 4; n++)
            add(&mine[n], 10);
        add(&durable->words[0], 1);
        add(&ordinary[0], 1);
        steps += 1;
        if (sum(mine, 4) != 50)
            abort();
        if (how)
            __transaction_cancel;
    }
    CHECK(sum(mine, 4) == (how ? 10 : 50));
    return steps;
}

/* Frames begin and end inside a transaction, and reuse the addresses of earlier frames. */
SELVEDGE_SAFE __attribute__((noinline)) static long churn(int depth)
{
    long here[16];
    for (int n = 0; n < 16; n++)
        add(&here[n], n + depth - here[n]);
    long below = depth > 0 ? churn(depth - 1) : 0;
    return below + sum(here, 16);
}

__attribute__((noinline)) static void frames(void)
{
    long guard[8] = {0};
    long found = 0;
    patomic { found = churn(10) + churn(3); }
    CHECK(sum(guard, 8) == 0);
    long expected = 0;
    for (int depth = 0; depth <= 10; depth++)
        expected += 120 + 16 * depth;
    for (int depth = 0; depth <= 3; depth++)
        expected += 120 + 16 * depth;
    CHECK(found == expected);
}

/* An inner transaction is cancelled, and the outer one goes on. */
__attribute__((noinline)) static void inner(void)
{
    long mine[4] = {0};
    void *kept = NULL, *gone = NULL;
    size_t size = 0;
    patomic {
        add(&durable->words[1], 1);
        add(&ordinary[1], 1);
        add(&mine[0], 1);
        kept = pmalloc(40, &durable->words[10]);
        patomic {
            add(&durable->words[1], 100);
            add(&durable->words[2], 100);
            add(&ordinary[1], 100);
            add(&ordinary[2], 100);
            add(&mine[0], 100);
            add(&mine[1], 100);
            gone = pmalloc(40, &durable->words[11]);
            if (durable->words[1] != 101 || ordinary[1] != 101 || mine[0] != 101)
                abort();
            patomic { add(&durable->words[3], 100); }
            pfree(&durable->words[10]);
            __transaction_cancel;
        }
        add(&durable->words[2], 2);
        add(&mine[1], 2);
        size = pmalloc_usable_size(kept);
    }
    CHECK(gone == NULL);
    CHECK(durable->words[1] == 1 && durable->words[2] == 2 && durable->words[3] == 0);
    CHECK(ordinary[1] == 1 && ordinary[2] == 0);
    CHECK(mine[0] == 1 && mine[1] == 2);
    CHECK(size >= 40 && durable->words[11] == 0);
    CHECK((void *)durable->words[10] == kept);
    patomic { pfree(&durable->words[10]); }
    CHECK(durable->words[10] == 0);
}

static char *kept, *lost;

/* The cancel of an inner transaction frees its memory, and undoes its stores to memory of the outer
 * one. The next owner of freed memory has it alone. */
__attribute__((noinline)) static void allocations(void)
{
    patomic {
        kept = malloc(64);
        kept[0] = 1;
        patomic {
            lost = malloc(64);
            lost[0] = 2;
            kept[0] = 2;
            kept[1] = 2;
            __transaction_cancel;
        }
        kept[1] = 3;
        lost = malloc(64);
        lost[0] = 4;
    }
    CHECK(kept[0] == 1 && kept[1] == 3 && lost[0] == 4);
    char *again = NULL;
    patomic {
        patomic {
            again = malloc(64);
            again[5] = 2;
            __transaction_cancel;
        }
        free(lost);
        lost = NULL;
    }
    CHECK(again == NULL && lost == NULL);
    free(kept);
}

typedef long operation(long *to, long what);

SELVEDGE_SAFE static long plus(long *to, long what) { return *to += what; }

static SELVEDGE_SAFE operation *by_pointer = plus;

/* Functions that are called by pointers have clones that the runtime finds. */
__attribute__((noinline)) static void pointers(void)
{
    long result;
    patomic { result = by_pointer(&durable->words[7], 5); }
    CHECK(result == 5 && durable->words[7] == 5);
}

/* The outermost transaction is cancelled from inside. */
__attribute__((noinline)) static void outer(void)
{
    int after = 0;
    __transaction_atomic [[outer]] {
        add(&durable->words[4], 1);
        patomic {
            add(&durable->words[5], 1);
            if (durable->words[5] == 1)
                __transaction_cancel [[outer]];
        }
        after = 1;
    }
    CHECK(after == 0 && durable->words[4] == 0 && durable->words[5] == 0);
}

/* Declared as in the interface of libitm. */
typedef uint64_t _ITM_transactionId_t;
#define _ITM_noTransactionId 1
SELVEDGE_PURE void _ITM_addUserCommitAction(void (*)(void *), _ITM_transactionId_t, void *);
SELVEDGE_PURE void _ITM_addUserUndoAction(void (*)(void *), void *);
SELVEDGE_PURE _ITM_transactionId_t _ITM_getTransactionId(void);

static volatile int committed, undone;

/* Both count only calls after the block, when the word has its final value. */
static void on_commit(void *word)
{
    committed += !selvedge_in_transaction() && *(long *)word == 1;
}

static void on_undo(void *word)
{
    undone += !selvedge_in_transaction() && *(long *)word == 0;
}

/* The actions of a block run at its end: one for a commit, the other for an undo. */
__attribute__((noinline)) static void actions(int how)
{
    long *word = &durable->words[20];
    *word = 0;
    committed = undone = 0;
    CHECK(_ITM_getTransactionId() == _ITM_noTransactionId);
    patomic {
        _ITM_addUserCommitAction(on_commit, _ITM_noTransactionId, word);
        _ITM_addUserUndoAction(on_undo, word);
        add(word, 1);
        if (_ITM_getTransactionId() == _ITM_noTransactionId)
            abort();
        if (how)
            __transaction_cancel;
    }
    CHECK(committed == (how ? 0 : 1));
    CHECK(undone == (how ? 1 : 0));
    CHECK(*word == (how ? 0 : 1));
    /* No action is left for the next block. */
    patomic { add(word, 1); }
    CHECK(committed == (how ? 0 : 1) && undone == (how ? 1 : 0));
}

/* A transaction in a function that others call inside of theirs. */
SELVEDGE_SAFE __attribute__((noinline)) static int flat(int depth)
{
    int deepest = depth;
    patomic {
        add(&durable->words[6], 1);
        if (depth < 20)
            deepest = flat(depth + 1);
    }
    return deepest;
}

int main(void)
{
    durable = selvedge_root("state", sizeof *durable);
    CHECK(durable != NULL);
    memset(durable, 0, sizeof *durable);
    CHECK(cancelled(1) == 7);
    CHECK(durable->words[0] == 0 && ordinary[0] == 0);
    CHECK(cancelled(0) == 8);
    CHECK(durable->words[0] == 1 && ordinary[0] == 1);
    frames();
    for (int n = 0; n < 3; n++) {
        durable->words[1] = durable->words[2] = ordinary[1] = 0;
        inner();
    }
    outer();
    for (int n = 0; n < 100; n++)
        allocations();
    pointers();
    for (int n = 0; n < 4; n++)
        actions(n % 2);
    CHECK(flat(0) == 20 && durable->words[6] == 21);
    patomic {
        flat(15);
        __transaction_cancel;
    }
    CHECK(durable->words[6] == 21);
    CHECK(!selvedge_in_transaction());
    return 0;
}
