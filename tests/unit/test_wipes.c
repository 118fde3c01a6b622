/*
 * What stood in ordinary memory and would give a message or a key away is wiped before the memory goes. This
 * program's own sodium_memzero takes the place of the library's and keeps a list. The library wipes guarded
 * memory through it too, whole pages: sizes here are such that none is mistaken for another.
 */
#include "kernels/cpu/permute_block.h"
#include "kernels/scheme/encoder.h"
#include "kernels/scheme/keys.h"
#include "kernels/scheme/sample.h"
#include "tests/support/fixtures.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WIPES_MAX 4096u
static atomic_uint wipe_count;
static struct {
    size_t bytes;
    bool had_content;
} wipes[WIPES_MAX];

void sodium_memzero(void *const memory, const size_t bytes) {
    const uint8_t *at = memory;
    uint8_t any = 0;
    for (size_t i = 0; i < bytes; i++) any |= at[i];
    const unsigned index = atomic_fetch_add(&wipe_count, 1);
    if (index < WIPES_MAX) wipes[index].bytes = bytes, wipes[index].had_content = any != 0;
    explicit_bzero(memory, bytes);
}

static void begin(void) {
    atomic_store(&wipe_count, 0);
}
/* how many pieces of this size, none of them empty already */
static uint32_t wiped(size_t bytes) {
    uint32_t count = 0;
    const unsigned all = atomic_load(&wipe_count);
    for (unsigned i = 0; i < all && i < WIPES_MAX; i++)
        count += wipes[i].bytes == bytes && wipes[i].had_content;
    return count;
}

#define SLOTS 256u /* so that no two sizes below are the same */
#define LEVEL 4u

typedef struct scene {
    ckks_context *context;
    const ckks_params *p;
    size_t n;
    secret_key *sk;
    uint64_t *plain, *c;
    double slots[SLOTS];
} scene;

static void open_scene(scene *x) {
    prng r;
    prng_init(&r, 1);
    x->context = fixture_context(11, LEVEL + 1, 2, 2);
    x->p = context_params(x->context);
    x->n = params_n(x->p);
    assert_int_equal(secret_key_generate(&x->sk, x->context, NULL), CKKS_OK);
    x->plain = calloc((LEVEL + 1) * x->n, sizeof *x->plain);
    x->c = calloc(4 * (LEVEL + 1) * x->n, sizeof *x->c);
    assert_true(x->plain && x->c);
    for (uint32_t i = 0; i < SLOTS; i++) x->slots[i] = prng_symmetric(&r);
}
static void close_scene(scene *x) {
    free(x->plain), free(x->c);
    secret_key_destroy(x->sk);
    context_destroy(x->context);
}
static ckks_status encode(scene *x, double scale) {
    return encoder_encode(x->plain, x->context, x->slots, NULL, SLOTS, LEVEL, false, scale, NULL);
}

static void encoding_wipes_slots_and_coefficients(void **state) {
    (void)state;
    scene x;
    open_scene(&x);
    begin();
    assert_int_equal(encode(&x, 0x1p40), CKKS_OK);
    assert_int_equal(wiped(4 * SLOTS * sizeof(double)), 1);
    begin(); /* and when it is refused */
    assert_int_equal(encode(&x, 0x1p300), CKKS_PRECISION);
    assert_int_equal(wiped(4 * SLOTS * sizeof(double)), 1);
    close_scene(&x);
}

static void decoding_wipes_residues_and_coefficients(void **state) {
    (void)state;
    scene x;
    double out[SLOTS];
    open_scene(&x);
    assert_int_equal(encode(&x, 0x1p40), CKKS_OK);
    begin();
    assert_int_equal(encoder_decode(out, NULL, x.context, x.plain, SLOTS, LEVEL, 0x1p40, NULL), CKKS_OK);
    assert_int_equal(wiped((LEVEL + 1) * x.n * sizeof(double)), 1);
    assert_int_equal(wiped(3 * SLOTS * sizeof(double)), 1);
    close_scene(&x);
}

static void encryption_wipes_its_mask_and_its_draws(void **state) {
    (void)state;
    scene x;
    uint8_t seed[SEED_BYTES];
    open_scene(&x);
    uint64_t *pk = x.c + 2 * (LEVEL + 1) * x.n;
    assert_int_equal(encode(&x, 0x1p40), CKKS_OK);
    begin();
    assert_int_equal(encrypt_public(x.c, x.c + (LEVEL + 1) * x.n, x.context, pk, pk, x.plain, LEVEL, NULL),
                     CKKS_OK);
    assert_int_equal(wiped(x.n * sizeof(uint64_t)), 1); /* one thread at this size */
    assert_int_equal(wiped(SAMPLER_CHUNK_BYTES), 2);    /* ternary, errors */
    begin();
    assert_int_equal(encrypt_symmetric(x.c, seed, x.sk, x.plain, LEVEL, NULL), CKKS_OK);
    assert_int_equal(wiped(SAMPLER_CHUNK_BYTES), 1);
    close_scene(&x);
}

/* A block of s^2, or of the permuted s, for each limb that holds the gadget. */
static void key_generation_wipes_what_it_hides(void **state) {
    (void)state;
    static const key_requirement keys[] = {{KEY_RELINEARISATION, 0, LEVEL}, {KEY_GALOIS, 5, LEVEL}};
    scene x;
    open_scene(&x);
    for (size_t i = 0; i < 2; i++) {
        uint64_t *words = calloc(key_seeded_word_count(x.p, &keys[i]), sizeof *words);
        const uint8_t seed[SEED_BYTES] = {1};
        assert_non_null(words);
        begin();
        assert_int_equal(key_generate(words, x.sk, &keys[i], seed, 0, NULL), CKKS_OK);
        assert_int_equal(wiped(PERMUTE_BLOCK * sizeof(uint64_t)), LEVEL + 1);
        free(words);
    }
    begin();
    secret_key *sk = NULL;
    assert_int_equal(secret_key_generate(&sk, x.context, NULL), CKKS_OK);
    assert_true(wiped(SAMPLER_CHUNK_BYTES) > 0);
    secret_key_destroy(sk);
    close_scene(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encoding_wipes_slots_and_coefficients),
        cmocka_unit_test(decoding_wipes_residues_and_coefficients),
        cmocka_unit_test(encryption_wipes_its_mask_and_its_draws),
        cmocka_unit_test(key_generation_wipes_what_it_hides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
