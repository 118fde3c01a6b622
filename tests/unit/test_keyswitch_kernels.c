/*
 * MOD_UP, KEY_PRODUCT, MOD_DOWN and RESCALE, word for word against their definitions in kernels.h computed
 * with big integers (FLINT), on random and adversarial residues. Automorphisms are applied to coefficients,
 * X^i ->
 * +-X^(i g mod N): independent of the permutation that the kernels use.
 */
#include "tests/support/kernel_fixture.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <flint/fmpz.h>

#include <cmocka.h>

static const struct shape {
    uint32_t q_count, p_count, digit_size;
} shapes[] = {{1, 1, 1}, {4, 1, 1}, {5, 2, 2}, {6, 3, 3}, {4, 4, 4}};
#define SHAPE_COUNT (sizeof shapes / sizeof shapes[0])

static device_fixture f;

static void open_shape(size_t i) {
    device_fixture_open(&f, fixture_context(10, shapes[i].q_count, shapes[i].p_count, shapes[i].digit_size),
                        2);
}

static uint64_t prime_of(uint32_t index) {
    return f.params->prime[index];
}

/* ---- base conversion by the definition ---- */

typedef struct big_conversion {
    uint32_t count;
    uint32_t source[CKKS_PRIMES_MAX];
    fmpz_t product, hat[CKKS_PRIMES_MAX], hat_inverse[CKKS_PRIMES_MAX];
} big_conversion;

static void big_init(big_conversion *c, const uint32_t *source, uint32_t count) {
    c->count = count;
    fmpz_init_set_ui(c->product, 1);
    for (uint32_t i = 0; i < count; i++) {
        c->source[i] = source[i];
        fmpz_mul_ui(c->product, c->product, prime_of(source[i]));
    }
    for (uint32_t i = 0; i < count; i++) {
        fmpz_t q;
        fmpz_init_set_ui(q, prime_of(source[i]));
        fmpz_init(c->hat[i]);
        fmpz_init(c->hat_inverse[i]);
        fmpz_divexact(c->hat[i], c->product, q);
        assert_true(fmpz_invmod(c->hat_inverse[i], c->hat[i], q));
        fmpz_clear(q);
    }
}

static void big_clear(big_conversion *c) {
    for (uint32_t i = 0; i < c->count; i++) {
        fmpz_clear(c->hat[i]);
        fmpz_clear(c->hat_inverse[i]);
    }
    fmpz_clear(c->product);
}

/* sum of centred(x_i / hat_i) * hat_i, a signed integer; x: one residue per source */
static void big_convert(fmpz_t out, const big_conversion *c, const uint64_t *x) {
    fmpz_t y, q;
    fmpz_init(y);
    fmpz_init(q);
    fmpz_zero(out);
    for (uint32_t i = 0; i < c->count; i++) {
        fmpz_set_ui(q, prime_of(c->source[i]));
        fmpz_mul_ui(y, c->hat_inverse[i], x[i]);
        fmpz_smod(y, y, q); /* symmetric residue */
        fmpz_addmul(out, y, c->hat[i]);
    }
    fmpz_clear(y);
    fmpz_clear(q);
}

/* ---- MOD_UP ---- */

static void check_mod_up_digit(const uint64_t *coefficients, const uint64_t *digit_words, uint32_t level,
                               uint32_t digit) {
    uint32_t source[CKKS_PRIMES_MAX], count = 0;
    const kernel_basis qp = {0, level + 1, f.params->p_count};
    for (uint32_t i = digit * f.params->digit_size; i <= level && count < f.params->digit_size; i++)
        source[count++] = i;
    big_conversion c;
    fmpz_t value;
    fmpz_init(value);
    big_init(&c, source, count);
    for (uint32_t k = 0; k < f.n; k++) {
        uint64_t x[CKKS_PRIMES_MAX];
        for (uint32_t i = 0; i < count; i++) x[i] = coefficients[(uint64_t)source[i] * f.n + k];
        big_convert(value, &c, x);
        for (uint32_t j = 0; j < basis_limb_count(qp); j++) {
            const uint64_t prime = prime_of(basis_prime(qp, j, f.params->q_count));
            assert_int_equal(digit_words[(uint64_t)j * f.n + k], fmpz_fdiv_ui(value, prime));
        }
    }
    fmpz_clear(value);
    big_clear(&c);
}

static void check_mod_up(uint32_t level, uint32_t pattern, uint32_t batch, prng *r) {
    const uint32_t limbs = level + 1, digits = params_digit_count(f.params, level);
    const kernel_basis q = {0, limbs, 0}, qp = {0, limbs, f.params->p_count};
    const uint64_t limbs_qp = basis_limb_count(qp);
    uint64_t *a = kernel_fixture_poly(&f, q, batch, pattern, r),
             *out = kernel_fixture_words(&f, batch * digits * limbs_qp);
    const uint64_t out_bytes = batch * digits * limbs_qp * f.n * sizeof *out;
    uint64_t *a_device = device_fixture_upload(&f, a, (uint64_t)batch * limbs * f.n * sizeof *a);
    uint64_t *out_device = device_fixture_upload(&f, NULL, out_bytes);
    uint64_t *scratch = device_fixture_upload(&f, NULL, (uint64_t)batch * limbs * f.n * sizeof *a);
    const kernel_mod_up_args args = {f.tables, out_device, {a_device, 1, limbs, q}, limbs, batch, scratch};
    device_fixture_launch(&f, KERNEL_MOD_UP, &args);
    device_fixture_download(&f, out, out_device, out_bytes);
    kernel_fixture_to_coefficients(&f, a, q, batch);
    kernel_fixture_to_coefficients(&f, out, qp, batch * digits);
    for (uint32_t b = 0; b < batch; b++)
        for (uint32_t d = 0; d < digits; d++)
            check_mod_up_digit(a + (uint64_t)b * limbs * f.n,
                               out + ((uint64_t)b * digits + d) * limbs_qp * f.n, level, d);
    device_free(f.dev, a_device);
    device_free(f.dev, out_device);
    device_free(f.dev, scratch);
    free(a);
    free(out);
}

static void mod_up_extends_each_digit_by_its_centred_residues(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 1);
    uint32_t launches = 0;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        open_shape(i);
        for (uint32_t level = 0; level < shapes[i].q_count; level++, launches++)
            check_mod_up(level, KERNEL_FIXTURE_RANDOM, 1 + level % 3, &r);
        for (uint32_t pattern = 0; pattern < FIXTURE_PATTERNS; pattern++, launches++)
            check_mod_up(shapes[i].q_count - 1, pattern, 1, &r);
        device_fixture_close(&f);
    }
    print_message("%u launches, every coefficient equal\n", launches);
}

/* MOD_UP(permute_g(a)) = permute_g(MOD_UP(a)): what hoisting rests on */
static void mod_up_commutes_with_automorphisms(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 2);
    open_shape(3);
    const uint32_t level = 4, limbs = level + 1, digits = params_digit_count(f.params, level), g = 5;
    const kernel_basis q = {0, limbs, 0}, qp = {0, limbs, f.params->p_count};
    const uint64_t limbs_qp = basis_limb_count(qp), bytes = digits * limbs_qp * f.n * sizeof(uint64_t);
    uint64_t *a = kernel_fixture_poly(&f, q, 2, KERNEL_FIXTURE_RANDOM, &r),
             *out = kernel_fixture_words(&f, 2 * digits * limbs_qp);
    for (uint32_t i = 0; i < limbs; i++) {
        uint64_t *rotated = kernel_fixture_galois_limb(&f, a + (uint64_t)i * f.n, g, i);
        memcpy(a + (uint64_t)(limbs + i) * f.n, rotated, f.n * sizeof *rotated);
        free(rotated);
    }
    uint64_t *a_device = device_fixture_upload(&f, a, 2ull * limbs * f.n * sizeof *a);
    uint64_t *out_device = device_fixture_upload(&f, NULL, 2 * bytes);
    uint64_t *scratch = device_fixture_upload(&f, NULL, 2ull * limbs * f.n * sizeof *a);
    const kernel_mod_up_args args = {f.tables, out_device, {a_device, 1, limbs, q}, limbs, 2, scratch};
    device_fixture_launch(&f, KERNEL_MOD_UP, &args);
    device_fixture_download(&f, out, out_device, 2 * bytes);
    for (uint32_t k = 0; k < digits * limbs_qp; k++) {
        uint64_t *expected = kernel_fixture_galois_limb(
            &f, out + (uint64_t)k * f.n, g, basis_prime(qp, k % (uint32_t)limbs_qp, f.params->q_count));
        assert_memory_equal(out + (digits * limbs_qp + k) * f.n, expected, f.n * sizeof *expected);
        free(expected);
    }
    device_free(f.dev, a_device);
    device_free(f.dev, out_device);
    device_free(f.dev, scratch);
    free(a);
    free(out);
    device_fixture_close(&f);
}

/* ---- MOD_DOWN and RESCALE ---- */

/* out_j = (numerator_j - conversion) / D mod j, all in coefficients; the numerator has the limbs of `basis`
 */
static void check_division(const uint64_t *numerator, kernel_basis basis, const uint32_t *dropped,
                           uint32_t dropped_count, const uint64_t *out, uint32_t limbs_out) {
    big_conversion c;
    fmpz_t value, prime, inverse;
    fmpz_init(value);
    fmpz_init(prime);
    fmpz_init(inverse);
    big_init(&c, dropped, dropped_count);
    for (uint32_t k = 0; k < f.n; k++) {
        uint64_t x[CKKS_PRIMES_MAX];
        fmpz_t conversion;
        fmpz_init(conversion);
        for (uint32_t i = 0; i < dropped_count; i++)
            for (uint32_t j = 0; j < basis_limb_count(basis); j++)
                if (basis_prime(basis, j, f.params->q_count) == dropped[i])
                    x[i] = numerator[(uint64_t)j * f.n + k];
        big_convert(conversion, &c, x);
        for (uint32_t j = 0; j < limbs_out; j++) {
            fmpz_set_ui(prime, prime_of(j));
            assert_true(fmpz_invmod(inverse, c.product, prime));
            fmpz_set_ui(value, numerator[(uint64_t)j * f.n + k]);
            fmpz_sub(value, value, conversion);
            fmpz_mul(value, value, inverse);
            fmpz_mod(value, value, prime);
            assert_int_equal(out[(uint64_t)j * f.n + k], fmpz_get_ui(value));
        }
        fmpz_clear(conversion);
    }
    big_clear(&c);
    fmpz_clear(value);
    fmpz_clear(prime);
    fmpz_clear(inverse);
}

/* numerator += P * permute_g(add), evaluation domain, the q limbs */
static void add_scaled(uint64_t *numerator, const uint64_t *add, uint32_t limbs, uint32_t g) {
    for (uint32_t i = 0; i < limbs; i++) {
        const modulus m = modulus_create(prime_of(i));
        uint64_t p = 1;
        for (uint32_t k = 0; k < f.params->p_count; k++)
            p = mod_mul(p, prime_of(f.params->q_count + k) % m.value, &m);
        uint64_t *rotated = kernel_fixture_galois_limb(&f, add + (uint64_t)i * f.n, g, i);
        for (uint32_t k = 0; k < f.n; k++) {
            uint64_t *to = &numerator[(uint64_t)i * f.n + k];
            *to = mod_add(*to, mod_mul(rotated[k], p, &m), m.value);
        }
        free(rotated);
    }
}

typedef struct down_case {
    uint32_t level, pattern, batch, components, add_components, g;
    bool with_rescale;
} down_case;

static void check_mod_down(const down_case *t, prng *r) {
    const uint32_t limbs = t->level + 1, limbs_out = limbs - (t->with_rescale ? 1 : 0);
    const kernel_basis q = {0, limbs, 0}, qp = {0, limbs, f.params->p_count}, q_out = {0, limbs_out, 0};
    const uint32_t limbs_qp = basis_limb_count(qp), total = t->batch * t->components;
    uint64_t *a = kernel_fixture_poly(&f, qp, total, t->pattern, r),
             *add = kernel_fixture_poly(&f, q, total, t->pattern, r);
    uint64_t *out = kernel_fixture_words(&f, (uint64_t)total * limbs_out);
    uint64_t *a_device = device_fixture_upload(&f, a, (uint64_t)total * limbs_qp * f.n * sizeof *a);
    uint64_t *add_device = device_fixture_upload(&f, add, (uint64_t)total * limbs * f.n * sizeof *a);
    uint64_t *out_device = device_fixture_upload(&f, NULL, (uint64_t)total * limbs_out * f.n * sizeof *a);
    uint64_t *scratch =
        device_fixture_upload(&f, NULL, (uint64_t)total * (f.params->p_count + 2 * limbs) * f.n * sizeof *a);
    const kernel_mod_down_args args = {
        .tables = f.tables,
        .out = {out_device, t->components, limbs_out, q_out},
        .a = {a_device, t->components, limbs_qp, qp},
        .add = {t->add_components ? add_device : NULL, t->add_components, limbs, q},
        .add_galois_element = t->g,
        .batch_count = t->batch,
        .out_batch_stride = t->components * limbs_out,
        .a_batch_stride = t->components * limbs_qp,
        .add_batch_stride = t->components * limbs,
        .with_rescale = t->with_rescale,
        .scratch = scratch,
    };
    device_fixture_launch(&f, KERNEL_MOD_DOWN, &args);
    device_fixture_download(&f, out, out_device, (uint64_t)total * limbs_out * f.n * sizeof *a);
    uint32_t dropped[CKKS_PRIMES_MAX], dropped_count = 0;
    for (uint32_t i = 0; i < f.params->p_count; i++) dropped[dropped_count++] = f.params->q_count + i;
    if (t->with_rescale) dropped[dropped_count++] = t->level;
    for (uint32_t k = 0; k < total; k++) {
        uint64_t *numerator = a + (uint64_t)k * limbs_qp * f.n, *result = out + (uint64_t)k * limbs_out * f.n;
        if (k % t->components < t->add_components)
            add_scaled(numerator, add + (uint64_t)k * limbs * f.n, limbs, t->g);
        kernel_fixture_to_coefficients(&f, numerator, qp, 1);
        kernel_fixture_to_coefficients(&f, result, q_out, 1);
        check_division(numerator, qp, dropped, dropped_count, result, limbs_out);
    }
    device_free(f.dev, a_device);
    device_free(f.dev, add_device);
    device_free(f.dev, out_device);
    device_free(f.dev, scratch);
    free(a);
    free(add);
    free(out);
}

static void mod_down_divides_by_p_or_by_p_and_the_last_prime(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 3);
    uint32_t launches = 0;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        open_shape(i);
        const uint32_t top = shapes[i].q_count - 1;
        for (uint32_t level = 0; level <= top; level++)
            for (uint32_t k = 0; k < 2; k++, launches++) {
                const down_case t = {level, KERNEL_FIXTURE_RANDOM, 1 + level % 2,      1 + k,
                                     k,     5 + 2 * level,         k == 1 && level > 0};
                check_mod_down(&t, &r);
            }
        for (uint32_t pattern = 0; pattern < FIXTURE_PATTERNS; pattern++, launches++) {
            const down_case t = {top, pattern, 1, 2, 2, 1, pattern % 2 && top};
            check_mod_down(&t, &r);
        }
        device_fixture_close(&f);
    }
    print_message("%u launches, every coefficient equal\n", launches);
}

static void check_rescale(uint32_t level, uint32_t components, uint32_t pattern, prng *r) {
    const uint32_t limbs = level + 1;
    const kernel_basis q = {0, limbs, 0}, q_out = {0, level, 0};
    uint64_t *a = kernel_fixture_poly(&f, q, components, pattern, r),
             *out = kernel_fixture_words(&f, (uint64_t)components * level);
    uint64_t *a_device = device_fixture_upload(&f, a, (uint64_t)components * limbs * f.n * sizeof *a);
    uint64_t *out_device = device_fixture_upload(&f, NULL, (uint64_t)components * level * f.n * sizeof *a);
    uint64_t *scratch = device_fixture_upload(&f, NULL, (uint64_t)components * limbs * f.n * sizeof *a);
    const kernel_rescale_args args = {
        f.tables, {out_device, components, level, q_out}, {a_device, components, limbs, q}, scratch};
    device_fixture_launch(&f, KERNEL_RESCALE, &args);
    device_fixture_download(&f, out, out_device, (uint64_t)components * level * f.n * sizeof *a);
    kernel_fixture_to_coefficients(&f, a, q, components);
    kernel_fixture_to_coefficients(&f, out, q_out, components);
    for (uint32_t c = 0; c < components; c++)
        check_division(a + (uint64_t)c * limbs * f.n, q, &level, 1, out + (uint64_t)c * level * f.n, level);
    device_free(f.dev, a_device);
    device_free(f.dev, out_device);
    device_free(f.dev, scratch);
    free(a);
    free(out);
}

static void rescale_divides_by_the_last_prime(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 4);
    open_shape(2);
    for (uint32_t level = 1; level < shapes[2].q_count; level++)
        check_rescale(level, 1 + level % 3, KERNEL_FIXTURE_RANDOM, &r);
    for (uint32_t pattern = 0; pattern < FIXTURE_PATTERNS; pattern++) check_rescale(2, 2, pattern, &r);
    device_fixture_close(&f);
}

/* ---- KEY_PRODUCT ---- */

/* key words [digit][2][limb][N], digits and limbs of key_level, then all p */
static uint64_t *key_new(uint32_t key_level, uint64_t *word_count, uint32_t pattern, prng *r) {
    const kernel_basis qp = {0, key_level + 1, f.params->p_count};
    const uint32_t digits = params_digit_count(f.params, key_level);
    *word_count = (uint64_t)digits * 2 * basis_limb_count(qp) * f.n;
    return kernel_fixture_poly(&f, qp, digits * 2, pattern, r);
}

typedef struct product_case {
    uint32_t level, key_level[2], pattern, digits_count, out_count, item_count;
    bool with_add;
    key_product_item items[4];
} product_case;

/* one limb of one output by the definition, added up term by term */
static void product_limb(uint64_t *sums, const product_case *t, const uint64_t *digits, const uint64_t *add,
                         uint64_t *const *keys, uint32_t out, uint32_t component, uint32_t limb) {
    const kernel_basis qp = {0, t->level + 1, f.params->p_count};
    const uint32_t prime = basis_prime(qp, limb, f.params->q_count), limbs = basis_limb_count(qp);
    const uint32_t digit_count = params_digit_count(f.params, t->level);
    fmpz_t term, q;
    fmpz_init(term);
    fmpz_init_set_ui(q, prime_of(prime));
    memset(sums, 0, f.n * sizeof *sums);
    for (uint32_t i = 0; i < t->item_count; i++) {
        const key_product_item *item = &t->items[i];
        if (item->out_index != out) continue;
        const uint32_t key_level = t->key_level[item->key], key_limbs = key_level + 1 + f.params->p_count;
        const uint32_t key_limb = limb <= t->level ? limb : key_level + 1 + (limb - t->level - 1);
        for (uint32_t d = 0; d < digit_count; d++) {
            const uint64_t *key =
                keys[item->key] + ((uint64_t)(2 * d + component) * key_limbs + key_limb) * f.n;
            uint64_t *digit = kernel_fixture_galois_limb(
                &f, digits + (((uint64_t)item->digits * digit_count + d) * limbs + limb) * f.n,
                item->galois_element, prime);
            for (uint32_t k = 0; k < f.n; k++) {
                fmpz_set_ui(term, digit[k]);
                fmpz_mul_ui(term, term, key[k]);
                fmpz_add_ui(term, term, sums[k]);
                sums[k] = fmpz_fdiv_ui(term, prime_of(prime));
            }
            free(digit);
        }
        if (!t->with_add || component || limb > t->level) continue;
        uint64_t *base = kernel_fixture_words(&f, limb + 1);
        uint64_t *source = kernel_fixture_words(&f, limb + 1);
        memcpy(source + (uint64_t)limb * f.n, add + ((uint64_t)item->digits * (t->level + 1) + limb) * f.n,
               f.n * sizeof *source);
        memcpy(base + (uint64_t)limb * f.n, sums, f.n * sizeof *sums);
        add_scaled(base, source, limb + 1, item->galois_element);
        memcpy(sums, base + (uint64_t)limb * f.n, f.n * sizeof *sums);
        free(base);
        free(source);
    }
    fmpz_clear(term);
    fmpz_clear(q);
}

static void check_key_product(const product_case *t, prng *r) {
    const kernel_basis q = {0, t->level + 1, 0}, qp = {0, t->level + 1, f.params->p_count};
    const uint32_t limbs = basis_limb_count(qp), digit_count = params_digit_count(f.params, t->level);
    const uint64_t bytes = f.n * sizeof(uint64_t);
    uint64_t *keys[2], words[2], *keys_device[2], *expected = kernel_fixture_words(&f, 1);
    key_table_entry table[2] = {{0}, {0}};
    for (uint32_t k = 0; k < 2; k++) {
        keys[k] = key_new(t->key_level[k], &words[k], t->pattern, r);
        keys_device[k] = device_fixture_upload(&f, keys[k], words[k] * sizeof(uint64_t));
        table[k] = (key_table_entry){(uintptr_t)keys_device[k], t->key_level[k] + 1, 0};
    }
    uint64_t *digits = kernel_fixture_poly(&f, qp, t->digits_count * digit_count, t->pattern, r);
    uint64_t *add = kernel_fixture_poly(&f, q, t->digits_count, t->pattern, r);
    uint64_t *out = kernel_fixture_words(&f, (uint64_t)t->out_count * 2 * limbs);
    void *table_device = device_fixture_upload(&f, table, sizeof table);
    void *items_device = device_fixture_upload(&f, t->items, t->item_count * sizeof t->items[0]);
    uint64_t *digits_device =
        device_fixture_upload(&f, digits, (uint64_t)t->digits_count * digit_count * limbs * bytes);
    uint64_t *add_device = device_fixture_upload(&f, add, (uint64_t)t->digits_count * (t->level + 1) * bytes);
    uint64_t *out_device = device_fixture_upload(&f, NULL, (uint64_t)t->out_count * 2 * limbs * bytes);
    const kernel_key_product_args args = {
        .tables = f.tables,
        .out = out_device,
        .out_count = t->out_count,
        .level = t->level,
        .digits = digits_device,
        .digits_count = t->digits_count,
        .add = t->with_add ? add_device : NULL,
        .add_stride = t->level + 1,
        .keys = table_device,
        .key_count = 2,
        .items = items_device,
        .items_host = t->items,
        .item_count = t->item_count,
    };
    device_fixture_launch(&f, KERNEL_KEY_PRODUCT, &args);
    device_fixture_download(&f, out, out_device, (uint64_t)t->out_count * 2 * limbs * bytes);
    for (uint32_t o = 0; o < t->out_count; o++)
        for (uint32_t c = 0; c < 2; c++)
            for (uint32_t j = 0; j < limbs; j++) {
                product_limb(expected, t, digits, add, keys, o, c, j);
                assert_memory_equal(out + (((uint64_t)o * 2 + c) * limbs + j) * f.n, expected, bytes);
            }
    for (uint32_t k = 0; k < 2; k++) {
        device_free(f.dev, keys_device[k]);
        free(keys[k]);
    }
    device_free(f.dev, table_device);
    device_free(f.dev, items_device);
    device_free(f.dev, digits_device);
    device_free(f.dev, add_device);
    device_free(f.dev, out_device);
    free(digits);
    free(add);
    free(out);
    free(expected);
}

static void key_product_sums_permuted_digits_times_keys(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 5);
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        open_shape(i);
        const uint32_t top = shapes[i].q_count - 1, low = top / 2;
        /* two outputs; one sums two items of different keys, digits and elements */
        const product_case t = {.level = low,
                                .key_level = {top, low},
                                .pattern = KERNEL_FIXTURE_RANDOM,
                                .digits_count = 2,
                                .out_count = 2,
                                .item_count = 3,
                                .with_add = true,
                                .items = {{0, 0, 5, 1}, {1, 1, 2 * f.n - 1, 0}, {1, 0, 25, 1}}};
        check_key_product(&t, &r);
        for (uint32_t pattern = 0; pattern < FIXTURE_PATTERNS; pattern++) {
            const product_case edge = {.level = top,
                                       .key_level = {top, top},
                                       .pattern = KERNEL_FIXTURE_RAW + pattern,
                                       .digits_count = 1,
                                       .out_count = 1,
                                       .item_count = 1,
                                       .with_add = pattern % 2 == 0,
                                       .items = {{0, 1, 1, 0}}};
            check_key_product(&edge, &r);
        }
        device_fixture_close(&f);
    }
}

/* launches a key product without a list; expected NULL: zeros */
static void check_uniform(uint64_t key_address, uint32_t key_limbs, bool is_public,
                          const uint64_t *expected) {
    prng r;
    prng_init(&r, 77);
    const uint32_t level = 1, p_count = is_public ? 0 : f.params->p_count, limbs = 2 + p_count;
    const uint32_t digit_count = is_public ? 1 : params_digit_count(f.params, level);
    const kernel_basis basis = {0, 2, p_count};
    uint64_t *digits = kernel_fixture_poly(&f, basis, digit_count, KERNEL_FIXTURE_RANDOM, &r),
             *out = kernel_fixture_words(&f, 2 * limbs);
    uint64_t *digits_device =
        device_fixture_upload(&f, digits, (uint64_t)digit_count * limbs * f.n * sizeof *digits);
    uint64_t *out_device = device_fixture_upload(&f, NULL, 2ull * limbs * f.n * sizeof *out);
    const key_table_entry entry = {key_address, key_limbs, 0};
    void *table = device_fixture_upload(&f, &entry, sizeof entry);
    const kernel_key_product_args args = {
        .tables = f.tables,
        .out = out_device,
        .out_count = 1,
        .level = level,
        .digits = digits_device,
        .digits_count = 1,
        .keys = table,
        .key_count = 1,
        .item_count = 1,
        .uniform = {.key = 0, .galois_element = 1},
        .is_public = is_public,
    };
    device_fixture_launch(&f, KERNEL_KEY_PRODUCT, &args);
    device_fixture_download(&f, out, out_device, 2ull * limbs * f.n * sizeof *out);
    for (uint32_t c = 0; c < 2; c++)
        for (uint32_t j = 0; j < limbs; j++)
            for (uint32_t k = 0; k < f.n; k++) {
                const uint64_t word = out[((uint64_t)c * limbs + j) * f.n + k];
                if (!expected) {
                    assert_int_equal(word, 0);
                    continue;
                }
                const modulus m = modulus_create(prime_of(j));
                assert_int_equal(word, mod_mul(digits[(uint64_t)j * f.n + k],
                                               expected[((uint64_t)c * key_limbs + j) * f.n + k], &m));
            }
    device_free(f.dev, digits_device);
    device_free(f.dev, out_device);
    device_free(f.dev, table);
    free(digits);
    free(out);
}

static void an_absent_or_too_low_key_counts_as_zero(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 6);
    uint64_t words;
    open_shape(2);
    uint64_t *key = key_new(0, &words, KERNEL_FIXTURE_RANDOM, &r);
    uint64_t *key_device = device_fixture_upload(&f, key, words * sizeof *key);
    check_uniform(0, 2, false, NULL);
    check_uniform((uintptr_t)key_device, 1, false, NULL);
    device_free(f.dev, key_device);
    free(key);
    device_fixture_close(&f);
}

static void a_public_key_has_one_digit_and_no_p_limbs(void **state) {
    (void)state;
    prng r;
    prng_init(&r, 7);
    open_shape(2);
    const kernel_basis q = {0, 4, 0};
    uint64_t *key = kernel_fixture_poly(&f, q, 2, KERNEL_FIXTURE_RANDOM, &r);
    uint64_t *key_device = device_fixture_upload(&f, key, 8ull * f.n * sizeof *key);
    check_uniform((uintptr_t)key_device, 4, true, key);
    device_free(f.dev, key_device);
    free(key);
    device_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mod_up_extends_each_digit_by_its_centred_residues),
        cmocka_unit_test(mod_up_commutes_with_automorphisms),
        cmocka_unit_test(mod_down_divides_by_p_or_by_p_and_the_last_prime),
        cmocka_unit_test(rescale_divides_by_the_last_prime),
        cmocka_unit_test(key_product_sums_permuted_digits_times_keys),
        cmocka_unit_test(an_absent_or_too_low_key_counts_as_zero),
        cmocka_unit_test(a_public_key_has_one_digit_and_no_p_limbs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
