/* Every allocation of every public function of the scheme fails once: a typed error, no crash, no leak (the
 * address sanitiser's leak check and the balance of live blocks below both look), nothing half made. */
#include "kernels/scheme/encoder.h"
#include "kernels/scheme/keys.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/fixtures.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct world {
    ckks_context *context;
    secret_key *sk;
    uint64_t *words, *more; /* room for anything below */
    double slots[512];
    int8_t coefficients[1024];
} world;

typedef ckks_status (*operation)(world *w, ckks_error *err);

static ckks_status do_context(world *w, ckks_error *err) {
    ckks_context *context = (void *)w;
    const ckks_status rc = context_create(&context, context_params(w->context), err);
    assert_true((rc == CKKS_OK) == (context != NULL));
    context_destroy(context);
    return rc;
}
static ckks_status do_generate(world *w, ckks_error *err) {
    secret_key *sk = (void *)w;
    const ckks_status rc = secret_key_generate(&sk, w->context, err);
    assert_true((rc == CKKS_OK) == (sk != NULL));
    secret_key_destroy(sk);
    return rc;
}
static ckks_status do_import(world *w, ckks_error *err) {
    secret_key *sk = (void *)w;
    const ckks_status rc =
        secret_key_import(&sk, w->context, w->coefficients, secret_key_lineage(w->sk), err);
    assert_true((rc == CKKS_OK) == (sk != NULL));
    secret_key_destroy(sk);
    return rc;
}
static ckks_status do_key(world *w, ckks_error *err) {
    const key_requirement key = {KEY_GALOIS, 5, 2};
    return key_generate(w->words, w->sk, &key, (const uint8_t[SEED_BYTES]){1}, 0, err);
}
static ckks_status do_public_key(world *w, ckks_error *err) {
    const key_requirement key = {KEY_PUBLIC, 0, 1};
    return key_generate(w->words, w->sk, &key, (const uint8_t[SEED_BYTES]){1}, 0, err);
}
static ckks_status do_encrypt(world *w, ckks_error *err) {
    uint8_t seed[SEED_BYTES];
    return encrypt_symmetric(w->words, seed, w->sk, w->more, 2, err);
}
static ckks_status do_encrypt_public(world *w, ckks_error *err) {
    return encrypt_public(w->words, w->words + 3 * 1024, w->context, w->more, w->more, w->more, 2, err);
}
static ckks_status do_decrypt(world *w, ckks_error *err) {
    return decrypt(w->words, w->sk, w->more, 2, 2, err);
}
static ckks_status do_encode(world *w, ckks_error *err) {
    return encoder_encode(w->words, w->context, w->slots, NULL, 512, 2, true, 0x1p30, err);
}
static ckks_status do_decode(world *w, ckks_error *err) {
    double real[512];
    return encoder_decode(real, NULL, w->context, w->more, 512, 2, 0x1p30, err);
}
static ckks_status do_constant(world *w, ckks_error *err) {
    return encoder_constant(w->words, context_params(w->context), 1.5, 0x1p30, 2, true, err);
}
static ckks_status do_parameters(world *w, ckks_error *err) {
    (void)w;
    ckks_params p;
    return params_generate(&p, 10, (const uint32_t[]){40, 30}, 2, (const uint32_t[]){45}, 1, 1, err);
}

static void each_failing_allocation_is_an_error_and_leaks_nothing(void **state) {
    (void)state;
    const struct {
        operation run;
        const char *name;
        uint64_t least; /* allocations it must have, so that the loop below tests something */
    } operations[] = {{do_context, "context_create", 6},        {do_generate, "secret_key_generate", 4},
                      {do_import, "secret_key_import", 3},      {do_key, "key_generate", 2},
                      {do_public_key, "public key", 2},         {do_encrypt, "encrypt_symmetric", 1},
                      {do_encrypt_public, "encrypt_public", 2}, {do_decrypt, "decrypt", 0},
                      {do_encode, "encoder_encode", 1},         {do_decode, "encoder_decode", 3},
                      {do_constant, "encoder_constant", 0},     {do_parameters, "params_generate", 0}};
    world w = {.context = fixture_context(10, 3, 2, 2)};
    w.words = calloc(64 * 1024, 8), w.more = calloc(64 * 1024, 8);
    assert_non_null(w.words), assert_non_null(w.more);
    assert_int_equal(secret_key_generate(&w.sk, w.context, NULL), CKKS_OK);
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        alloc_fault_set(0);
        assert_int_equal(operations[i].run(&w, NULL), CKKS_OK); /* also warms up teams and lazy tables */
        const uint64_t count = alloc_fault_calls();
        assert_true(count >= operations[i].least);
        /* freed blocks that the allocator keeps in its caches count as used: fill these first */
        size_t live = 0;
        for (int round = 0; round < 24; round++) {
            if (round == 12) live = mallinfo2().uordblks;
            for (uint64_t nth = 1; nth <= count; nth++) {
                ckks_error err = {0};
                alloc_fault_set(nth);
                const ckks_status rc = operations[i].run(&w, &err);
                alloc_fault_set(0);
                assert_int_equal(rc, CKKS_RESOURCE_EXHAUSTED);
                assert_int_equal(err.code, CKKS_RESOURCE_EXHAUSTED);
                assert_true(err.message[0] != 0);
            }
        }
        assert_int_equal(mallinfo2().uordblks, live);
        assert_int_equal(operations[i].run(&w, NULL), CKKS_OK);
        print_message("%s: %llu allocations\n", operations[i].name, (unsigned long long)count);
    }
    secret_key_destroy(w.sk);
    free(w.words), free(w.more);
    context_destroy(w.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_failing_allocation_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
