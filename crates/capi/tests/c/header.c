/* The header, on its own and first, in a program that uses the short names for its own symbols. */
#include <selvedge.h>

static SELVEDGE_STATIC long number;
static long SELVEDGE_PERSISTENT *pointer;

static int store(long *to, long value)
{
    *to = value;
    return 1;
}

static int wtstore(int written)
{
    return written + 1;
}

static int flush(void)
{
    return 2;
}

static int fence(int depth, int *gate)
{
    return depth + *gate;
}

static long pmap(void)
{
    return 3;
}

static int patomic, pstatic, persistent, pmalloc, pfree, punmap, log_create, log_close;

int main(void)
{
    int gate = 4;
    long mine = 0;

    patomic = pstatic = persistent = pmalloc = pfree = punmap = log_create = log_close = 1;
    SELVEDGE_ATOMIC
    {
        number += 1;
        pointer = &number;
    }
    if (store(&mine, 5) != 1 || mine != 5 || wtstore(1) != 2 || flush() != 2 || pmap() != 3)
        return 1;
    selvedge_flush(&number, sizeof number);
    return selvedge_fence() != 0 || fence(1, &gate) != 5 || pointer == NULL || number < 1
        || patomic + pstatic + persistent + pmalloc + pfree + punmap + log_create + log_close != 8;
}
