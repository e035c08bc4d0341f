// Exceptions that pass through selvedge_try, and blocks that fail while an exception leaves them.
#include "check.h"
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <selvedge/short.h>

static const long WORDS = 1 << 18;

static long *large, ordinary;
static volatile int alive;

struct Error {
    long value;
};

// An exception of code outside of blocks.
struct Counted {
    Counted() { alive = alive + 1; }
    Counted(const Counted &) { alive = alive + 1; }
    ~Counted() { alive = alive - 1; }
};

SELVEDGE_PURE __attribute__((noinline)) void throws_counted() { throw Counted(); }

// Writes more than a log and the heap can hold.
SELVEDGE_SAFE __attribute__((noinline)) void fill()
{
    ordinary += 1;
    for (long n = 0; n < WORDS; n++)
        large[n] = 5;
}

static void check_nothing_is_left()
{
    CHECK(large[0] == 1 && large[WORDS - 1] == 0 && ordinary == 0);
    CHECK(!selvedge_in_transaction() && alive == 0);
    CHECK(std::uncaught_exceptions() == 0 && std::current_exception() == nullptr);
}

// Returns whether selvedge_try returned a second time.
template <class What> __attribute__((noinline)) static bool fails(What what)
{
    if (selvedge_try() == 0) {
        what();
        selvedge_try_end();
        return false;
    }
    CHECK(errno == ENOMEM);
    return true;
}

// The exception reaches no handler: the commit of the block that it leaves fails.
static void block_throws()
{
    try {
        patomic {
            fill();
            throw Error{1};
        }
    } catch (...) {
        CHECK(false);
    }
}

static void call_throws()
{
    try {
        patomic {
            fill();
            throws_counted();
        }
    } catch (...) {
        CHECK(false);
    }
}

static void block_fails()
{
    patomic { fill(); }
}

__attribute__((noinline)) static void add_and_throw()
{
    patomic {
        large[1] += 1;
        throw Error{large[1]};
    }
}

// The block is committed. selvedge_try is open until the handler ends it.
static void passes()
{
    long before = large[1];
    bool is_caught = false;
    if (selvedge_try() == 0) {
        try {
            add_and_throw();
        } catch (const Error &error) {
            is_caught = error.value == before + 1;
            selvedge_try_end();
        }
        CHECK(is_caught && large[1] == before + 1);
    } else {
        CHECK(false);
    }
}

// A destructor can end it, too.
struct Trying {
    ~Trying() { selvedge_try_end(); }
};

__attribute__((noinline)) static void passes_out()
{
    if (selvedge_try() == 0) {
        Trying trying;
        add_and_throw();
    } else {
        CHECK(false);
    }
}

// From a frame that ends below that of the call above.
__attribute__((noinline)) static void block_fails_below()
{
    volatile char room[8192];
    room[0] = 1;
    block_fails();
    CHECK(room[0] == 1);
}

static void passes_then_fails()
{
    try {
        passes_out();
        CHECK(false);
    } catch (const Error &) {
    }
    block_fails_below();
}

// The handler is in the function that calls selvedge_try, and may call it again.
static void fails_in_handler()
{
    try {
        throw Error{4};
    } catch (const Error &error) {
        CHECK(fails(block_fails) && error.value == 4);
    }
}

int main()
{
    setenv("SELVEDGE_BYTES", "8388608", 1);
    setenv("SELVEDGE_LOG_BYTES", "65536", 1);
    large = static_cast<long *>(selvedge_root("large", WORDS * sizeof *large));
    CHECK(large != nullptr);
    patomic {
        large[0] = 1;
        large[1] = 0;
    }
    for (int n = 0; n < 2; n++) {
        CHECK(fails(block_throws));
        check_nothing_is_left();
        CHECK(fails(call_throws));
        check_nothing_is_left();
        CHECK(!fails(passes));
        CHECK(fails(passes_then_fails));
        fails_in_handler();
        check_nothing_is_left();
    }
    CHECK(large[1] == 4);
    return 0;
}
