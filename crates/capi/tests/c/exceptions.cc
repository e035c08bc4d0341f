// Exceptions that leave transactions, that are caught in them, and that a cancel undoes.
#include "check.h"
#include <exception>
#include <malloc.h>
#include <pthread.h>
#include <selvedge/short.h>
#include <stdexcept>

static long *durable;
static long ordinary;

struct Error {
    long value;
};

// An exception that leaves a transaction commits it.
__attribute__((noinline)) static void leaves()
{
    bool is_caught = false;
    try {
        patomic {
            *durable += 1;
            ordinary += 1;
            throw Error{*durable};
        }
    } catch (const Error &error) {
        is_caught = error.value == *durable;
    }
    CHECK(is_caught && !selvedge_in_transaction());
    CHECK(std::uncaught_exceptions() == 0);
}

// Not static: gcc 12 fails on specialised copies of it.
SELVEDGE_SAFE __attribute__((noinline)) void throws(long value)
{
    *durable += 100;
    if (value)
        throw Error{value};
}

// An exception that is caught inside. (gcc 12 fails on most such code. Without optimisation it
// fails on every handler that has a type.)
__attribute__((noinline)) static void stays()
{
    long found = 0;
    patomic {
        try {
            throws(7);
        } catch (...) {
            found = 1;
        }
    }
    CHECK(found == 1);
}

#ifdef __OPTIMIZE__
__attribute__((noinline)) static long value()
{
    long found = 0;
    patomic {
        try {
            throws(7);
        } catch (Error &error) {
            found = error.value;
        }
    }
    return found;
}
#endif

// The transaction is cancelled in the handler, and after it.
__attribute__((noinline)) static void cancelled()
{
    long before = *durable;
    patomic {
        try {
            throws(3);
        } catch (...) {
            __transaction_cancel;
        }
    }
    CHECK(*durable == before && std::uncaught_exceptions() == 0);
    CHECK(std::current_exception() == nullptr);
}

__attribute__((noinline)) static void cancelled_behind()
{
    long before = *durable;
    patomic {
        bool is_caught = false;
        try {
            throws(3);
        } catch (...) {
            is_caught = true;
        }
        if (is_caught)
            __transaction_cancel;
    }
    CHECK(*durable == before && std::uncaught_exceptions() == 0);
}

// The memory of a freed exception has a new owner. Neither the commit nor a cancel stores there.
static unsigned char *taken;
static size_t taken_bytes;

SELVEDGE_PURE __attribute__((noinline)) void take(size_t bytes)
{
    taken_bytes = bytes + 128; // as the C++ runtime does
    taken = static_cast<unsigned char *>(malloc(taken_bytes));
    memset(taken, 0x11, taken_bytes);
}

static bool is_untouched()
{
    size_t same = 0;
    for (size_t n = 0; n < taken_bytes; n++)
        same += taken[n] == 0x11;
    free(taken);
    return same == taken_bytes;
}

struct Large {
    long values[8];
    SELVEDGE_SAFE Large(long value)
    {
        for (long &place : values)
            place = value;
    }
};

SELVEDGE_SAFE __attribute__((noinline)) void throws_large(long value) { throw Large(value); }

SELVEDGE_SAFE __attribute__((noinline)) void catches_large()
{
    try {
        throws_large(*durable);
    } catch (...) {
        *durable += 1;
    }
}

SELVEDGE_SAFE __attribute__((noinline)) void catches_inside()
{
    patomic {
        if (*durable == -1)
            __transaction_cancel;
        catches_large();
    }
}

__attribute__((noinline)) static void gone()
{
    patomic {
        catches_inside();
        take(sizeof(Large));
        if (*durable != -2)
            __transaction_cancel;
    }
    CHECK(is_untouched());
}

#ifdef __OPTIMIZE__
SELVEDGE_SAFE __attribute__((noinline)) void throws_again()
{
    try {
        throws(4);
    } catch (...) {
        *durable += 1;
        throw;
    }
}

__attribute__((noinline)) static void gone_later()
{
    long before = *durable;
    patomic {
        try {
            throws_again();
        } catch (Error &error) {
            error.value = 5;
        }
        take(sizeof(Error));
    }
    CHECK(is_untouched() && *durable == before + 101);
}
#endif

// Exceptions of the standard library have transactional clones.
__attribute__((noinline)) static void standard()
{
    bool is_caught = false;
    try {
        patomic {
            *durable += 1;
            throw std::logic_error("on purpose");
        }
    } catch (const std::exception &error) {
        is_caught = !strcmp(error.what(), "on purpose");
    }
    CHECK(is_caught);
}

struct Node {
    Node *next;
    long value;
};

static Node *list;

// A cancel deletes new objects, and keeps deleted ones.
__attribute__((noinline)) static void objects()
{
    size_t before = 0;
    for (int round = 0; round < 2000; round++) {
        bool cancels = round % 2;
        patomic {
            for (int n = 0; n < 10; n++)
                list = new Node{list, n};
            long *several = new long[10];
            several[9] = 1;
            delete[] several;
            if (cancels)
                __transaction_cancel;
        }
        CHECK(cancels ? list == nullptr : list->value == 9);
        if (round % 4 == 0) {
            patomic {
                delete list->next;
                __transaction_cancel;
            }
            CHECK(list->next->value == 8);
        }
        patomic {
            while (list) {
                Node *node = list;
                list = node->next;
                delete node;
            }
        }
        if (round == 1000)
            before = mallinfo2().uordblks;
    }
    // The library's other thread may allocate some too: less than a node in each round.
    CHECK(mallinfo2().uordblks < before + 1000 * sizeof(Node));
}

// Transactions that exceptions leave run again after conflicts, and the exceptions of failed
// attempts are freed.
static long *shared;

static void *work(void *)
{
    for (int n = 0; n < 2000; n++) {
        bool is_caught = false;
        try {
            patomic {
                shared[0] += 1;
                shared[n % 16] += 1;
                throw std::runtime_error("a text that is too long to be kept in the object");
            }
        } catch (const std::exception &) {
            is_caught = true;
        }
        CHECK(is_caught && std::uncaught_exceptions() == 0);
    }
    return nullptr;
}

static void threads()
{
    shared = static_cast<long *>(selvedge_root("shared", 16 * sizeof *shared));
    CHECK(shared != nullptr);
    long before = 0;
    for (int n = 0; n < 16; n++)
        before += shared[n];
    pthread_t threads[3];
    for (pthread_t &thread : threads)
        CHECK(!pthread_create(&thread, nullptr, work, nullptr));
    for (pthread_t &thread : threads)
        CHECK(!pthread_join(thread, nullptr));
    long sum = 0;
    for (int n = 0; n < 16; n++)
        sum += shared[n];
    CHECK(sum == before + 2 * 3 * 2000);
}

int main()
{
    durable = static_cast<long *>(selvedge_root("exceptions", sizeof *durable));
    CHECK(durable != nullptr);
    long before = *durable;
    for (int n = 0; n < 10; n++)
        leaves();
    CHECK(*durable == before + 10 && ordinary == 10);
    try {
        patomic { throws(1); }
        CHECK(false);
    } catch (const Error &error) {
        CHECK(error.value == 1);
    }
    CHECK(*durable == before + 110);
    for (int n = 0; n < 10; n++) {
        stays();
        cancelled();
        cancelled_behind();
#ifdef __OPTIMIZE__
        CHECK(value() == 7);
        gone_later();
#endif
        gone();
    }
    standard();
    objects();
    threads();
    return 0;
}
