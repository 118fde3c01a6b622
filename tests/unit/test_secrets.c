/*
 * Secrets decide no branch and no address in key generation, encryption and decryption. The program runs
 * itself under valgrind's memcheck, where everything drawn at random, hence the secret key and the noise, is
 * marked undefined (secret_marks.h), and so are the plaintexts: any jump or address that depends on them is
 * reported and fails the test. What leaves for the world is marked defined in this file alone, after checking
 * that the marks did arrive there: a check of nothing would pass too.
 *
 * The marks say nothing of instructions whose time depends on their operands: there are no divisions of
 * secrets by integers in the code, and no denormal numbers.
 */
#include "kernels/scheme/encoder.h"
#include "kernels/scheme/key_internal.h"
#include "kernels/scheme/limb_loops_internal.h"
#include "kernels/scheme/secret_marks.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define REPORTED 99 /* valgrind's exit status if it has reported anything */

/* ---- the program that valgrind runs: exit status 0, or a line on standard error and 1 ---- */

#ifdef CKKS_SECRET_MARKS

static const char *self;

static void must(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* groups of `size` bytes in which no bit is marked */
static size_t unmarked(const void *memory, size_t count, size_t size) {
    uint8_t *marks = calloc(count, size);
    size_t found = 0;
    must(marks && VALGRIND_GET_VBITS(memory, marks, count * size) == 1, "valgrind does not answer");
    for (size_t i = 0; i < count; i++) {
        uint8_t any = 0;
        for (size_t k = 0; k < size; k++) any |= marks[i * size + k];
        found += any == 0;
    }
    free(marks);
    return found;
}

/* Words that must be secret until now, all of them, and go out from here. */
static void publish(uint64_t *words, size_t count, const char *what) {
    char text[128];
    snprintf(text, sizeof text, "%s: the marks did not arrive", what);
    must(unmarked(words, count, sizeof *words) == 0, text);
    secret_declassify(words, count * sizeof *words);
}

static void must_be(ckks_status rc, const ckks_error *err, const char *what) {
    if (rc != CKKS_OK) fprintf(stderr, "%s: %s\n", what, err->message);
    must(rc == CKKS_OK, what);
}

typedef struct world {
    ckks_context *context;
    const ckks_params *params;
    size_t n, component;
    uint32_t level, slot_count;
    secret_key *sk;
    uint64_t *plain, *cipher, *public_key, *key;
    double *slots, *decoded;
} world;

static void world_open(world *w, uint32_t log_n) {
    w->context = fixture_context(log_n, 3, 2, 2);
    w->params = context_params(w->context);
    w->n = params_n(w->params), w->level = params_level_max(w->params);
    w->component = (w->level + 1) * w->n, w->slot_count = params_slot_count_max(w->params);
    const key_requirement key = {KEY_GALOIS, 5, w->level};
    w->plain = calloc(w->component, 8), w->cipher = calloc(3 * w->component, 8);
    w->public_key = calloc(2 * w->component, 8), w->key = calloc(key_seeded_word_count(w->params, &key), 8);
    w->slots = calloc(w->slot_count, 8), w->decoded = calloc(w->slot_count, 8);
    must(w->plain && w->cipher && w->public_key && w->key && w->slots && w->decoded, "no memory");
}
static void world_close(world *w) {
    secret_key_destroy(w->sk);
    context_destroy(w->context);
    free(w->plain), free(w->cipher), free(w->public_key), free(w->key), free(w->slots), free(w->decoded);
}

static void uniform_half(const world *w, uint64_t *words, const uint8_t *seed, uint32_t purpose) {
    for (uint32_t i = 0; i <= w->level; i++)
        seed_expand(words + i * w->n, (uint32_t)w->n, w->params->prime[i], seed, purpose, 0, i);
}

static void generate(world *w) {
    const uint8_t seed[SEED_BYTES] = {7};
    ckks_error err = {0};
    must_be(secret_key_generate(&w->sk, w->context, &err), &err, "secret_key_generate");
    must(unmarked(secret_key_evaluations(w->sk, 0), params_prime_count(w->params) * w->n, 8) == 0,
         "the secret key is not marked");
    const key_requirement keys[] = {{KEY_RELINEARISATION, 0, w->level},
                                    {KEY_GALOIS, 5, w->level},
                                    {KEY_GALOIS, 2 * (uint32_t)w->n - 1, 1},
                                    {KEY_PUBLIC, 0, w->level}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        uint64_t *words = keys[i].kind == KEY_PUBLIC ? w->public_key : w->key;
        must_be(key_generate(words, w->sk, &keys[i], seed, 0, &err), &err, "key_generate");
        publish(words, (size_t)key_seeded_word_count(w->params, &keys[i]), "an evaluation or public key");
    }
    uniform_half(w, w->public_key + w->component, seed, SEED_PUBLIC_KEY);
    /* a key from a file */
    secret_key *again;
    int8_t *coefficients = malloc(w->n);
    must(coefficients != NULL, "no memory");
    secret_key_export(w->sk, coefficients);
    must(unmarked(coefficients, w->n, 1) == 0, "exported coefficients are not marked");
    must_be(secret_key_import(&again, w->context, coefficients, secret_key_lineage(w->sk), &err), &err,
            "secret_key_import");
    secret_key_destroy(again);
    free(coefficients);
}

static double value(uint32_t slot) {
    return sin(slot);
}

static void encode(world *w) {
    ckks_error err = {0};
    for (uint32_t i = 0; i < w->slot_count; i++) w->slots[i] = value(i);
    secret_mark(w->slots, w->slot_count * sizeof *w->slots);
    must_be(
        encoder_encode(w->plain, w->context, w->slots, NULL, w->slot_count, w->level, false, 0x1p35, &err),
        &err, "encoder_encode");
    must(unmarked(w->plain, w->component, 8) == 0, "the plaintext is not marked");
}

/* cipher: component_count components. Decoding is run secret where it promises something; expected NULL: it
 * is no ciphertext of anything near. */
static void decrypt_and_compare(world *w, uint32_t component_count, double (*expected)(uint32_t slot),
                                const char *what) {
    ckks_error err = {0};
    uint64_t *plain = calloc(w->component, 8);
    must(plain != NULL, "no memory");
    must_be(decrypt(plain, w->sk, w->cipher, component_count, w->level, &err), &err, what);
    must(unmarked(plain, w->component, 8) == 0, "what was decrypted is not marked");
    if (!expected) goto out;
    if (!limb_loops_best()->near_quotients) secret_declassify(plain, w->component * 8);
    must_be(encoder_decode(w->decoded, NULL, w->context, plain, w->slot_count, w->level, 0x1p35, &err), &err,
            what);
    secret_declassify(w->decoded, w->slot_count * sizeof *w->decoded);
    for (uint32_t i = 0; i < w->slot_count; i++) must(fabs(w->decoded[i] - expected(i)) < 1e-4, what);
out:
    free(plain);
}

static void run_everything(cpu_isa isa, uint32_t log_n) {
    world w = {0};
    uint8_t seed[SEED_BYTES];
    ckks_error err = {0};
    limb_loops_force(isa);
    world_open(&w, log_n);
    generate(&w);
    encode(&w);
    must_be(encrypt_symmetric(w.cipher, seed, w.sk, w.plain, w.level, &err), &err, "encrypt_symmetric");
    publish(w.cipher, w.component, "a ciphertext under the secret key");
    uniform_half(&w, w.cipher + w.component, seed, SEED_CIPHERTEXT);
    decrypt_and_compare(&w, 2, value, "encrypted with the secret key");
    must_be(encrypt_public(w.cipher, w.cipher + w.component, w.context, w.public_key,
                           w.public_key + w.component, w.plain, w.level, &err),
            &err, "encrypt_public");
    publish(w.cipher, 2 * w.component, "a ciphertext under the public key");
    decrypt_and_compare(&w, 2, value, "encrypted with the public key");
    memset(w.cipher + 2 * w.component, 0, w.component * 8);
    w.cipher[2 * w.component] = 1;
    decrypt_and_compare(&w, 3, NULL, "three components");
    world_close(&w);
}

/* Mistakes that must be found: a branch and an index that depend on a coefficient of the secret key. */
static void plant(const char *what) {
    static const volatile uint8_t table[3] = {1, 2, 3};
    world w = {0};
    volatile uint32_t count = 0;
    int8_t coefficients[1024];
    world_open(&w, 10);
    must(secret_key_generate(&w.sk, w.context, NULL) == CKKS_OK, "secret_key_generate");
    secret_key_export(w.sk, coefficients);
    for (size_t i = 0; i < sizeof coefficients; i++) {
        if (!strcmp(what, "branch") && coefficients[i] > 0) count = count + 1;
        if (!strcmp(what, "index")) count = count + table[coefficients[i] + 1];
    }
    world_close(&w);
}

static int checked_main(char **argv) {
    omp_set_num_threads(1);
    if (!RUNNING_ON_VALGRIND) return 1;
    if (!strcmp(argv[2], "planted")) {
        plant(argv[3]);
        return 0;
    }
    const cpu_isa isa = !strcmp(argv[3], "scalar") ? CPU_ISA_SCALAR : CPU_ISA_AVX2;
    run_everything(isa, 10);
    run_everything(isa, 12);
    return 0;
}

/* ---- the tests ---- */

/* exit status of this program under valgrind with two arguments; its report goes to the test's output */
static int under_valgrind(const char *first, const char *second) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(STDERR_FILENO, STDOUT_FILENO);
        execlp("valgrind", "valgrind", "-q", "--error-exitcode=99", "--leak-check=no", "--num-callers=8",
               self, "--checked", first, second, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void skip_without_valgrind(void) {
    if (system("valgrind --version >/dev/null 2>&1") == 0) return; // NOLINT(cert-env33-c): a fixed command
    print_message("valgrind is not installed (make deps-dev)\n");
    skip();
}

static void nothing_depends_on_secrets(const char *isa) {
    cpu_isa chosen;
    skip_without_valgrind();
    if (cpu_isa_choose(&chosen, isa, NULL) != CKKS_OK) {
        print_message("this machine has no %s\n", isa);
        skip();
    }
    assert_int_equal(under_valgrind("everything", isa), 0);
}

static void scalar_code_has_no_branch_or_address_of_secrets(void **state) {
    (void)state;
    nothing_depends_on_secrets("scalar");
}
static void avx2_code_has_no_branch_or_address_of_secrets(void **state) {
    (void)state;
    nothing_depends_on_secrets("avx2");
}
static void avx512_code_has_no_branch_or_address_of_secrets(void **state) {
    (void)state;
    print_message("skipped: valgrind decodes no AVX-512 instruction. Unchecked here: the transforms; the "
                  "encoder's and the samplers' "
                  "loops come from the template that is checked as AVX2.\n");
    skip();
}
static void a_planted_branch_and_a_planted_index_are_found(void **state) {
    (void)state;
    skip_without_valgrind();
    assert_int_equal(under_valgrind("planted", "branch"), REPORTED);
    assert_int_equal(under_valgrind("planted", "index"), REPORTED);
}

#else

static void valgrinds_header_was_there_when_this_was_built(void **state) {
    (void)state;
    print_message("built without valgrind/memcheck.h, or with a sanitizer: secrets are not followed\n");
    skip();
}

#endif

int main(int argc, char **argv) {
#ifdef CKKS_SECRET_MARKS
    self = argv[0];
    if (argc == 4 && !strcmp(argv[1], "--checked")) return checked_main(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalar_code_has_no_branch_or_address_of_secrets),
        cmocka_unit_test(avx2_code_has_no_branch_or_address_of_secrets),
        cmocka_unit_test(avx512_code_has_no_branch_or_address_of_secrets),
        cmocka_unit_test(a_planted_branch_and_a_planted_index_are_found),
    };
#else
    (void)argc, (void)argv;
    const struct CMUnitTest tests[] = {cmocka_unit_test(valgrinds_header_was_there_when_this_was_built)};
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
