/* Every kind of value, loaded and stored in transactions, in durable and ordinary memory. */
#include "check.h"
#include <complex.h>
#include <selvedge/short.h>

typedef float v2 __attribute__((vector_size(8)));
typedef float v4 __attribute__((vector_size(16)));
typedef float v8 __attribute__((vector_size(32)));
typedef double d8 __attribute__((vector_size(64)));

struct __attribute__((packed)) crooked {
    uint8_t a;
    uint16_t b;
    uint32_t c;
    uint64_t d;
    double e;
    long double f;
};

struct all {
    uint8_t u1;
    uint16_t u2;
    uint32_t u4;
    uint64_t u8;
    float f;
    double d;
    long double e;
    float complex cf;
    double complex cd;
    long double complex ce;
    __int128 i16;
    v2 m64;
    v4 m128;
    v8 m256;
    d8 m512;
    struct crooked crooked;
    unsigned bits : 5, more_bits : 20;
    uint8_t bytes[64];
};

static struct all ordinary;
static long double extended = 0.1L;

/* Copies each value to the next one, twice: read after read, after write, and so on. */
SELVEDGE_SAFE __attribute__((noinline)) static void step(struct all *p)
{
    p->u1 += 1;
    p->u2 += p->u1;
    p->u4 += p->u2;
    p->u8 += (uint64_t)p->u4 << 20;
    p->f += 1.5f;
    p->d += p->f;
    p->e += p->d + extended;
    p->cf += 1.0f + 2.0f * I;
    p->cd += p->cf;
    p->ce += p->cd;
    p->i16 += (__int128)p->u8 << 60;
    p->m64 += (v2){1, 2};
    p->m128 += (v4){1, 2, 3, 4};
    p->m256 += (v8){1, 2, 3, 4, 5, 6, 7, 8};
    p->m512 += (d8){1, 2, 3, 4, 5, 6, 7, 8};
    p->crooked.a += 1;
    p->crooked.b += 1000;
    p->crooked.c += 100000;
    p->crooked.d += 10000000000;
    p->crooked.e += 0.5;
    p->crooked.f += 0.25L;
    p->bits += 3;
    p->more_bits += 1001;
    for (int n = 0; n < 64; n++)
        p->bytes[n] += n;
}

static int same(const struct all *a, const struct all *b)
{
    int vectors = !memcmp(&a->m64, &b->m64, sizeof a->m64)
        && !memcmp(&a->m128, &b->m128, sizeof a->m128)
        && !memcmp(&a->m256, &b->m256, sizeof a->m256)
        && !memcmp(&a->m512, &b->m512, sizeof a->m512);
    int crooked = a->crooked.a == b->crooked.a && a->crooked.b == b->crooked.b
        && a->crooked.c == b->crooked.c && a->crooked.d == b->crooked.d
        && a->crooked.e == b->crooked.e && a->crooked.f == b->crooked.f;
    return a->u1 == b->u1 && a->u2 == b->u2 && a->u4 == b->u4 && a->u8 == b->u8 && a->f == b->f
        && a->d == b->d && a->e == b->e && a->cf == b->cf && a->cd == b->cd && a->ce == b->ce
        && a->i16 == b->i16 && vectors && crooked && a->bits == b->bits
        && a->more_bits == b->more_bits && !memcmp(a->bytes, b->bytes, sizeof a->bytes);
}

int main(void)
{
    /* A block is aligned to 64 bytes if its size is. */
    struct all *durable = selvedge_root("all", (sizeof *durable + 63) / 64 * 64);
    CHECK(durable != NULL && (uintptr_t)durable % 64 == 0);
    struct all expected, on_stack;
    memset(durable, 0, sizeof *durable);
    memset(&expected, 0, sizeof expected);
    memset(&on_stack, 0, sizeof on_stack);
    for (int n = 0; n < 50; n++) {
        step(&expected);
        patomic {
            step(durable);
            step(&ordinary);
            step(&on_stack);
        }
        CHECK(same(durable, &expected));
        CHECK(same(&ordinary, &expected));
        CHECK(same(&on_stack, &expected));
        patomic {
            step(durable);
            step(&ordinary);
            step(&on_stack);
            __transaction_cancel;
        }
        CHECK(same(durable, &expected));
        CHECK(same(&ordinary, &expected));
        CHECK(same(&on_stack, &expected));
        /* Whole structures. */
        struct all copy;
        patomic {
            copy = *durable;
            ordinary = copy;
        }
        CHECK(same(&copy, &expected) && same(&ordinary, &expected));
    }
    return 0;
}
