/* Seed expansion against committed vectors, made by another program. */
#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "kernels/scheme/expand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expansion_equals_the_committed_vectors(void **state) {
    (void)state;
    FILE *file = fopen("tests/data/seed-expansion.txt", "r");
    assert_non_null(file);
    char line[512];
    int cases = 0;
    while (fgets(line, sizeof line, file)) {
        if (line[0] == '#') continue;
        char *field[13], *rest = NULL;
        field[0] = strtok_r(line, " \n", &rest);
        for (int i = 1; i < 13; i++) assert_non_null(field[i] = strtok_r(NULL, " \n", &rest));
        const uint32_t log_n = (uint32_t)strtoul(field[0], NULL, 10);
        const uint64_t prime = strtoull(field[1], NULL, 10);
        const char *seed_text = field[2], *digest_text = field[12];
        const uint32_t purpose = (uint32_t)strtoul(field[3], NULL, 10);
        const uint32_t polynomial = (uint32_t)strtoul(field[4], NULL, 10);
        const uint32_t index = (uint32_t)strtoul(field[5], NULL, 10);
        uint64_t expected[6];
        for (int i = 0; i < 6; i++) expected[i] = strtoull(field[6 + i], NULL, 10);
        char text[65];
        uint8_t seed[SEED_BYTES], digest[SHA256_BYTES];
        assert_true(hex_decode(seed, sizeof seed, seed_text));
        const uint32_t n = 1u << log_n;
        uint64_t *words = malloc(n * sizeof *words);
        assert_non_null(words);
        seed_expand(words, n, prime, seed, purpose, polynomial, index);
        for (int i = 0; i < 4; i++) assert_int_equal(words[i], expected[i]);
        for (uint32_t i = 0; i < 2; i++) assert_int_equal(words[n - 2 + i], expected[4 + i]);
        for (uint32_t i = 0; i < n; i++) {
            assert_true(words[i] < prime);
            bytes_write_u64(&words[i], words[i]);
        }
        sha256(digest, words, n * sizeof *words);
        assert_string_equal(hex_encode(text, digest, sizeof digest), digest_text);
        free(words);
        cases++;
    }
    fclose(file);
    assert_int_equal(cases, 18);
}

static void a_shorter_expansion_is_a_prefix(void **state) {
    (void)state;
    const uint8_t seed[SEED_BYTES] = {9};
    const uint64_t prime = 274877816833;
    uint64_t whole[1024], part[1024];
    seed_expand(whole, 1024, prime, seed, SEED_SELF_TEST, 3, 1);
    const uint32_t sizes[] = {0, 1, 3, 255, 256, 257, 511, 1000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memset(part, 0xEE, sizeof part);
        seed_expand(part, sizes[i], prime, seed, SEED_SELF_TEST, 3, 1);
        assert_memory_equal(part, whole, sizes[i] * 8);
        assert_int_equal(part[sizes[i]], 0xEEEEEEEEEEEEEEEEull);
    }
}

static void every_part_of_the_nonce_counts(void **state) {
    (void)state;
    uint8_t seed[SEED_BYTES] = {1};
    const uint64_t prime = 1099510054913;
    uint64_t base[8], other[8];
    seed_expand(base, 8, prime, seed, 1, 2, 3);
    const uint32_t nonce[][3] = {{2, 2, 3}, {1, 3, 3},   {1, 2, 4},    {2, 1, 3},
                                 {1, 3, 2}, {257, 2, 3}, {1, 65538, 3}};
    for (size_t i = 0; i < sizeof nonce / sizeof *nonce; i++) {
        seed_expand(other, 8, prime, seed, nonce[i][0], nonce[i][1], nonce[i][2]);
        assert_memory_not_equal(other, base, sizeof base);
    }
    seed[31] = 1;
    seed_expand(other, 8, prime, seed, 1, 2, 3);
    assert_memory_not_equal(other, base, sizeof base);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expansion_equals_the_committed_vectors),
        cmocka_unit_test(a_shorter_expansion_is_a_prefix),
        cmocka_unit_test(every_part_of_the_nonce_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
