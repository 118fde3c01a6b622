/*
 * The sums over lists (DIAGONAL_SUM, PERMUTE_SUM, MATRIX_PRODUCT) against their definitions, one reduced term
 * at a time, on random and adversarial residues.
 */
#include "kernels/cpu/permute_block.h"
#include "tests/support/kernel_fixture.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static device_fixture f;

static uint64_t prime_of(uint32_t index) {
    return f.params->prime[index];
}

static void diagonal_sum_adds_products_of_its_items(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 8);
    device_fixture_open(&f, fixture_context(10, 5, 2, 2), 2);
    for (uint32_t round = 0; round < 2; round++) {
        const uint32_t pattern = round ? KERNEL_FIXTURE_RAW + 2 : KERNEL_FIXTURE_RANDOM;
        const kernel_basis qp = {0, 3, f.params->p_count};
        const uint32_t limbs = basis_limb_count(qp), ins = 3, plains = 5;
        const uint64_t limb_bytes = f.n * sizeof(uint64_t);
        uint64_t *in = kernel_fixture_poly(&f, qp, ins * 2, pattern, &r),
                 *plain = kernel_fixture_poly(&f, qp, plains, pattern, &r);
        uint64_t *out = kernel_fixture_words(&f, 3ull * 2 * limbs);
        uint64_t *in_device = device_fixture_upload(&f, in, (uint64_t)ins * 2 * limbs * limb_bytes);
        uint64_t *plain_device = device_fixture_upload(&f, plain, (uint64_t)plains * limbs * limb_bytes);
        uint64_t *out_device = device_fixture_upload(&f, NULL, 3ull * 2 * limbs * limb_bytes);
        const uint32_t where[5][2] = {{0, 0}, {0, 2}, {2, 0}, {2, 1}, {2, 2}}; /* out 1 has no item */
        diagonal_item items[5];
        for (uint32_t i = 0; i < 5; i++)
            items[i] = (diagonal_item){where[i][0], where[i][1],
                                       (uintptr_t)(plain_device + (uint64_t)i * limbs * f.n)};
        void *items_device = device_fixture_upload(&f, items, sizeof items);
        const kernel_diagonal_sum_args args = {f.tables, out_device, in_device,    3,     ins,
                                               2,        qp,         items_device, items, 5};
        device_fixture_launch(&f, KERNEL_DIAGONAL_SUM, &args);
        device_fixture_download(&f, out, out_device, 3ull * 2 * limbs * limb_bytes);
        for (uint64_t at = 0; at < 3ull * 2 * limbs * f.n; at++) {
            const uint64_t k = at % f.n, j = at / f.n % limbs, c = at / f.n / limbs % 2,
                           o = at / f.n / limbs / 2;
            const modulus m = modulus_create(prime_of(basis_prime(qp, (uint32_t)j, f.params->q_count)));
            uint64_t sum = 0;
            for (uint32_t i = 0; i < 5; i++)
                if (where[i][0] == o)
                    sum = mod_add(sum,
                                  mod_mul(plain[(i * limbs + j) * f.n + k],
                                          in[((where[i][1] * 2 + c) * limbs + j) * f.n + k], &m),
                                  m.value);
            assert_int_equal(out[at], sum);
        }
        device_free(f.dev, in_device);
        device_free(f.dev, plain_device);
        device_free(f.dev, out_device);
        device_free(f.dev, items_device);
        free(in);
        free(plain);
        free(out);
    }
    device_fixture_close(&f);
}

static void check_permute_sum(uint32_t pattern, bool with_start, uint32_t item_count, prng *r) {
    const kernel_basis qp = {0, 2, f.params->p_count};
    const uint32_t limbs = basis_limb_count(qp);
    const uint64_t entry_bytes = (uint64_t)limbs * f.n * sizeof(uint64_t);
    uint64_t *in = kernel_fixture_poly(&f, qp, 3, pattern, r),
             *out = kernel_fixture_poly(&f, qp, 1, pattern, r);
    uint64_t *expected = kernel_fixture_words(&f, limbs);
    permute_item *items = calloc(item_count, sizeof *items);
    assert_non_null(items);
    for (uint32_t i = 0; i < item_count; i++)
        items[i] = (permute_item){(uint32_t)prng_below(r, 3), 2 * (uint32_t)prng_below(r, f.n) + 1};
    if (with_start) memcpy(expected, out, entry_bytes);
    /* few distinct elements when there are many items, so that the reference stays quick */
    for (uint32_t i = 4; i < item_count; i++) items[i] = items[i % 4];
    uint64_t *rotated[4] = {0};
    for (uint32_t i = 0; i < item_count && i < 4; i++) {
        rotated[i] = kernel_fixture_words(&f, limbs);
        for (uint32_t j = 0; j < limbs; j++) {
            uint64_t *limb =
                kernel_fixture_galois_limb(&f, in + ((uint64_t)items[i].in * limbs + j) * f.n,
                                           items[i].galois_element, basis_prime(qp, j, f.params->q_count));
            memcpy(rotated[i] + (uint64_t)j * f.n, limb, f.n * sizeof *limb);
            free(limb);
        }
    }
    for (uint32_t i = 0; i < item_count; i++)
        for (uint64_t k = 0; k < (uint64_t)limbs * f.n; k++)
            expected[k] = mod_add(expected[k], rotated[i % 4][k],
                                  prime_of(basis_prime(qp, (uint32_t)(k / f.n), f.params->q_count)));
    uint64_t *in_device = device_fixture_upload(&f, in, 3 * entry_bytes);
    uint64_t *out_device = device_fixture_upload(&f, out, entry_bytes);
    void *items_device = device_fixture_upload(&f, items, item_count * sizeof *items);
    const kernel_permute_sum_args args = {.tables = f.tables,
                                          .out = {out_device, 1, limbs, qp},
                                          .start = with_start ? out_device : NULL,
                                          .in = in_device,
                                          .in_stride = limbs,
                                          .in_count = 3,
                                          .items = items_device,
                                          .items_host = items,
                                          .item_count = item_count};
    device_fixture_launch(&f, KERNEL_PERMUTE_SUM, &args);
    device_fixture_download(&f, out, out_device, entry_bytes);
    assert_memory_equal(out, expected, entry_bytes);
    for (uint32_t i = 0; i < 4; i++) free(rotated[i]);
    device_free(f.dev, in_device);
    device_free(f.dev, out_device);
    device_free(f.dev, items_device);
    free(in);
    free(out);
    free(expected);
    free(items);
}

static void permute_sum_adds_permuted_polynomials(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 9);
    device_fixture_open(&f, fixture_context(10, 5, 2, 2), 2);
    check_permute_sum(KERNEL_FIXTURE_RANDOM, false, 1, &r);
    check_permute_sum(KERNEL_FIXTURE_RANDOM, true, 3, &r);
    check_permute_sum(KERNEL_FIXTURE_RAW + 2, true, 4, &r);
    /* more terms than residues of 50 bits fit into a word */
    check_permute_sum(KERNEL_FIXTURE_RAW + 2, true, 20000, &r);
    device_fixture_close(&f);
}

static void matrix_product_is_the_clear_matrix_times_the_batch(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 10);
    device_fixture_open(&f, fixture_context(10, 4, 1, 1), 2);
    for (uint32_t round = 0; round < 2 * 2; round++) {
        const bool with_bias = round >= 2;
        const uint32_t pattern = round % 2 ? KERNEL_FIXTURE_RAW + 2 : KERNEL_FIXTURE_RANDOM;
        const kernel_basis q = {0, 3, 0};
        const uint32_t rows = 3, columns = 5, limbs = 3;
        uint64_t *in = kernel_fixture_poly(&f, q, columns * 2, pattern, &r),
                 *out = kernel_fixture_words(&f, (uint64_t)rows * 2 * limbs);
        uint64_t weight[45], bias[9];
        for (uint32_t i = 0; i < 9; i++)
            bias[i] = round % 2 ? prime_of(i / 3) - 1 : prng_below(&r, prime_of(i / 3));
        for (uint32_t i = 0; i < 45; i++)
            weight[i] =
                pattern != KERNEL_FIXTURE_RANDOM ? prime_of(i / 15) - 1 : prng_below(&r, prime_of(i / 15));
        uint64_t *in_device = device_fixture_upload(&f, in, (uint64_t)columns * 2 * limbs * f.n * sizeof *in);
        uint64_t *out_device = device_fixture_upload(&f, NULL, (uint64_t)rows * 2 * limbs * f.n * sizeof *in);
        uint64_t *weight_device = device_fixture_upload(&f, weight, sizeof weight);
        uint64_t *bias_device = with_bias ? device_fixture_upload(&f, bias, sizeof bias) : NULL;
        const kernel_matrix_product_args args = {f.tables, out_device, in_device, weight_device, rows,
                                                 columns,  2,          q,         bias_device};
        device_fixture_launch(&f, KERNEL_MATRIX_PRODUCT, &args);
        device_fixture_download(&f, out, out_device, (uint64_t)rows * 2 * limbs * f.n * sizeof *in);
        for (uint64_t at = 0; at < (uint64_t)rows * 2 * limbs * f.n; at++) {
            const uint64_t k = at % f.n, j = at / f.n % limbs, c = at / f.n / limbs % 2,
                           row = at / f.n / limbs / 2;
            const modulus m = modulus_create(prime_of((uint32_t)j));
            uint64_t sum = with_bias && c == 0 ? bias[j * rows + row] : 0;
            for (uint32_t i = 0; i < columns; i++)
                sum = mod_add(sum,
                              mod_mul(weight[(j * rows + row) * columns + i],
                                      in[((i * 2 + c) * limbs + j) * f.n + k], &m),
                              m.value);
            assert_int_equal(out[at], sum);
        }
        device_free(f.dev, in_device);
        device_free(f.dev, out_device);
        device_free(f.dev, weight_device);
        device_free(f.dev, bias_device);
        free(in);
        free(out);
    }
    device_fixture_close(&f);
}

static void blocks_of_an_automorphism_follow_its_index_in_every_ring(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 11);
    for (uint32_t log_n = CKKS_LOG_N_MIN; log_n <= CKKS_LOG_N_MAX; log_n++)
        for (uint32_t round = 0; round < 8; round++) {
            const uint32_t n = 1u << log_n, g = round ? 2 * (uint32_t)prng_below(&r, n) + 1 : 2 * n - 1;
            for (uint32_t block = 0; block < n / PERMUTE_BLOCK; block += 1 + (uint32_t)prng_below(&r, 3)) {
                uint8_t index[PERMUTE_BLOCK];
                const uint32_t from = permute_block_fill(index, log_n, g, block);
                for (uint32_t k = 0; k < PERMUTE_BLOCK; k++)
                    assert_int_equal(from + index[k],
                                     automorphism_index(log_n, g, block * PERMUTE_BLOCK + k));
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_of_an_automorphism_follow_its_index_in_every_ring),
        cmocka_unit_test(diagonal_sum_adds_products_of_its_items),
        cmocka_unit_test(permute_sum_adds_permuted_polynomials),
        cmocka_unit_test(matrix_product_is_the_clear_matrix_times_the_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
