/*
 * Parameter sets: validation, identity, choice of primes and the security gate.
 *
 * A set may come from a peer, so params_finish trusts nothing in it: every count is bounded before it
 * indexes, every prime and root is verified. Products of primes are formed exactly (bigint.h): neither the
 * gate nor the digit bound rests on floating point.
 */
#include "kernels/scheme/params.h"
#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "kernels/scheme/bigint.h"
#include "kernels/scheme/mod.h"

#include <stdio.h>

#define PRIME_LIMIT ((uint64_t)1 << CKKS_PRIME_BITS_MAX)

/* ---- identity ---- */

static void canonical_id(ckks_params *p) {
    uint8_t bytes[8 + 6 * 4 + 2 * 8 * CKKS_PRIMES_MAX];
    const uint32_t head[6] = {
        p->log_n, p->q_count, p->p_count, p->digit_size, p->secret_distribution, p->transform_order};
    const uint32_t count = params_prime_count(p);
    uint8_t *at = bytes;
    memcpy(at, "CKKSPAR1", 8), at += 8;
    for (uint32_t i = 0; i < 6; i++, at += 4) bytes_write_u32(at, head[i]);
    for (uint32_t i = 0; i < count; i++, at += 8) bytes_write_u64(at, p->prime[i]);
    for (uint32_t i = 0; i < count; i++, at += 8) bytes_write_u64(at, p->psi[i]);
    sha256(p->id, bytes, (size_t)(at - bytes));
}

/* ---- validation ---- */

static ckks_status check_counts(const ckks_params *p, ckks_error *err) {
    if (p->log_n < CKKS_LOG_N_MIN || p->log_n > CKKS_LOG_N_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "log_n", "%u is outside %u to %u", p->log_n,
                              CKKS_LOG_N_MIN, CKKS_LOG_N_MAX);
    if (p->q_count < 1 || p->q_count > CKKS_PRIMES_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "q_count", "%u is outside 1 to %u", p->q_count,
                              CKKS_PRIMES_MAX);
    if (p->p_count > CKKS_DIGIT_SIZE_MAX || p->p_count > CKKS_PRIMES_MAX - p->q_count)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "p_count",
                              "%u is more than %u, or over %u primes with the %u of q", p->p_count,
                              CKKS_DIGIT_SIZE_MAX, CKKS_PRIMES_MAX, p->q_count);
    if (p->digit_size < 1 || p->digit_size > CKKS_DIGIT_SIZE_MAX || p->digit_size > p->q_count)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "digit_size",
                              "%u is outside 1 to %u, or more than the %u primes of q", p->digit_size,
                              CKKS_DIGIT_SIZE_MAX, p->q_count);
    if (p->secret_distribution != CKKS_SECRET_UNIFORM_TERNARY)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "secret_distribution", "%u is unknown",
                              p->secret_distribution);
    if (p->transform_order != CKKS_TRANSFORM_BIT_REVERSED)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "transform_order", "%u is unknown",
                              p->transform_order);
    return CKKS_OK;
}

static ckks_status check_prime(const ckks_params *p, uint32_t i, ckks_error *err) {
    const uint64_t q = p->prime[i];
    char field[24];
    snprintf(field, sizeof field, "prime[%u]", i);
    if (q >= PRIME_LIMIT)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "%llu is not below 2^%u",
                              (unsigned long long)q, CKKS_PRIME_BITS_MAX);
    if (q < 3 || (q - 1) % (2ull << p->log_n) != 0)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "%llu is not 1 modulo 2N = %llu",
                              (unsigned long long)q, 2ull << p->log_n);
    if (!is_prime_u64(q))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "%llu is not prime", (unsigned long long)q);
    for (uint32_t k = 0; k < i; k++)
        if (p->prime[k] == q)
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "%llu occurs twice",
                                  (unsigned long long)q);
    return CKKS_OK;
}

/* The smallest of the N primitive 2N-th roots of unity: all are odd powers of any one of them. */
static uint64_t smallest_psi(uint32_t log_n, const modulus *m) {
    uint64_t psi = 0;
    for (uint64_t g = 2; psi == 0; g++) {
        const uint64_t c = mod_pow(g, (m->value - 1) >> (log_n + 1), m);
        if (mod_pow(c, 1ull << log_n, m) == m->value - 1) psi = c;
    }
    const uint64_t square = mod_mul(psi, psi, m), square_shoup = mod_shoup(square, m->value);
    uint64_t best = psi;
    for (uint64_t k = 1, c = psi; k < 1ull << log_n; k++) {
        c = mod_mul_shoup(c, square, square_shoup, m->value);
        if (c < best) best = c;
    }
    return best;
}

static ckks_status finish_psi(ckks_params *p, uint32_t i, ckks_error *err) {
    const modulus m = modulus_create(p->prime[i]);
    if (p->psi[i] == 0) p->psi[i] = smallest_psi(p->log_n, &m);
    if (p->psi[i] < m.value && mod_pow(p->psi[i], 1ull << p->log_n, &m) == m.value - 1) return CKKS_OK;
    char field[24];
    snprintf(field, sizeof field, "psi[%u]", i);
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field,
                          "%llu is not a primitive 2N-th root of unity modulo %llu",
                          (unsigned long long)p->psi[i], (unsigned long long)m.value);
}

/* Key switching divides noise by P after multiplying it by a digit: a digit larger than P would leave it. */
static ckks_status check_digits(const ckks_params *p, ckks_error *err) {
    uint64_t big_p[BIGINT_WORDS_MAX], digit[BIGINT_WORDS_MAX];
    if (!p->p_count) return CKKS_OK; /* nothing is switched */
    bigint_product(big_p, BIGINT_WORDS_MAX, p->prime + p->q_count, p->p_count);
    for (uint32_t first = 0, d = 0; first < p->q_count; first += p->digit_size, d++) {
        const uint32_t left = p->q_count - first;
        bigint_product(digit, BIGINT_WORDS_MAX, p->prime + first,
                       left < p->digit_size ? left : p->digit_size);
        if (bigint_is_below(big_p, digit, BIGINT_WORDS_MAX))
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "digit_size",
                                  "the product of digit %u (%u bits) is over that of all p (%u bits)", d,
                                  bigint_bits(digit, BIGINT_WORDS_MAX), bigint_bits(big_p, BIGINT_WORDS_MAX));
    }
    return CKKS_OK;
}

ckks_status params_finish(ckks_params *params, ckks_error *err) {
    ckks_status rc = check_counts(params, err);
    const uint32_t count = rc == CKKS_OK ? params_prime_count(params) : 0;
    for (uint32_t i = 0; rc == CKKS_OK && i < count; i++) rc = check_prime(params, i, err);
    if (rc == CKKS_OK) rc = check_digits(params, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < count; i++) rc = finish_psi(params, i, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = count; i < CKKS_PRIMES_MAX; i++) params->prime[i] = params->psi[i] = 0;
    canonical_id(params);
    return CKKS_OK;
}

/* ---- choice of primes ---- */

static bool is_used(const ckks_params *p, uint64_t q) {
    for (uint32_t i = 0; i < CKKS_PRIMES_MAX; i++)
        if (p->prime[i] == q) return true;
    return false;
}

static bool is_candidate(const ckks_params *p, uint64_t q) {
    return !is_used(p, q) && is_prime_u64(q);
}

/* The unused NTT prime in (low, high) nearest to target, the smaller of two equally near; 0 if there is none.
 */
static uint64_t nearest_prime(const ckks_params *p, uint64_t target, uint64_t low, uint64_t high) {
    const uint64_t step = 2ull << p->log_n;
    uint64_t below = (target - 1) / step * step + 1, above = below + step;
    while (below > low || above < high) {
        const bool takes_below = below > low && (above >= high || target - below <= above - target);
        if (takes_below) {
            if (is_candidate(p, below)) return below;
            below -= step; /* stays above 0: low is at least step */
        } else {
            if (is_candidate(p, above)) return above;
            above += step;
        }
    }
    return 0;
}

static ckks_status no_prime(const char *list, uint32_t i, uint32_t bits, ckks_error *err) {
    char field[24];
    snprintf(field, sizeof field, "%s[%u]", list, i);
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "no unused NTT prime of about %u bits is left",
                          bits);
}

static ckks_status check_bits(uint32_t log_n, const char *list, const uint32_t *bits, uint32_t count,
                              ckks_error *err) {
    for (uint32_t i = 0; i < count; i++) {
        if (bits[i] >= log_n + 3 && bits[i] <= CKKS_PRIME_BITS_MAX) continue;
        char field[24];
        snprintf(field, sizeof field, "%s[%u]", list, i);
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "%u is outside %u to %u", bits[i], log_n + 3,
                              CKKS_PRIME_BITS_MAX);
    }
    return CKKS_OK;
}

/* From the top level down, a square at scale s is followed by a division by q_l: s' = s^2 / q_l. Taking the
 * prime nearest to s^2 / 2^bits, in units of the nominal size, puts s' within half a gap between primes of
 * nominal at every level; any fixed order lets the deviation double at each. */
static ckks_status choose_q(ckks_params *p, const uint32_t *bits, ckks_error *err) {
    double ratio = 1.0; /* scale over its nominal value: only * and /, so the same everywhere */
    for (uint32_t level = p->q_count - 1; level > 0; level--) {
        const uint64_t nominal = 1ull << bits[level];
        const uint64_t high = nominal << 1 < PRIME_LIMIT ? nominal << 1 : PRIME_LIMIT;
        uint64_t target = (uint64_t)(ratio * ratio * (double)nominal + 0.5);
        if (target >= high) target = high - 1;
        const uint64_t q = nearest_prime(p, target, nominal >> 1, high);
        if (!q) return no_prime("q_bits", level, bits[level], err);
        p->prime[level] = q;
        ratio = ratio * ratio / ((double)q / (double)nominal);
        /* only where no prime is left near the target, as above 2^50: such a scale cannot be held by squaring
         */
        if (ratio < 0.75 || ratio > 1.25) ratio = 1.0;
    }
    p->prime[0] = nearest_prime(p, 1ull << bits[0], 1ull << (bits[0] - 1), 1ull << bits[0]);
    return p->prime[0] ? CKKS_OK : no_prime("q_bits", 0, bits[0], err);
}

/* P must not be smaller than a digit, so a p is taken above every q of its nominal size; at the largest size,
 * where there is nothing above, p has the first choice. */
static ckks_status choose_p(ckks_params *p, const uint32_t *bits, bool is_largest_size, ckks_error *err) {
    for (uint32_t i = 0; i < p->p_count; i++) {
        if ((bits[i] == CKKS_PRIME_BITS_MAX) != is_largest_size) continue;
        const uint64_t nominal = 1ull << bits[i];
        uint64_t low = nominal, high = nominal << 1;
        if (is_largest_size) low = nominal >> 1, high = nominal;
        for (uint32_t k = 0; !is_largest_size && k < p->q_count; k++)
            if (p->prime[k] > low && p->prime[k] < nominal + (nominal >> 2)) low = p->prime[k];
        const uint64_t q = nearest_prime(p, is_largest_size ? nominal : low, low, high);
        if (!q) return no_prime("p_bits", i, bits[i], err);
        p->prime[p->q_count + i] = q;
    }
    return CKKS_OK;
}

ckks_status params_generate(ckks_params *out, uint32_t log_n, const uint32_t *q_bits, uint32_t q_count,
                            const uint32_t *p_bits, uint32_t p_count, uint32_t digit_size, ckks_error *err) {
    ckks_status rc;
    ckks_params p = {.log_n = log_n,
                     .q_count = q_count,
                     .p_count = p_count,
                     .digit_size = digit_size,
                     .secret_distribution = CKKS_SECRET_UNIFORM_TERNARY,
                     .transform_order = CKKS_TRANSFORM_BIT_REVERSED};
    if ((rc = check_counts(&p, err)) != CKKS_OK) return rc;
    if ((rc = check_bits(log_n, "q_bits", q_bits, q_count, err)) != CKKS_OK) return rc;
    if ((rc = check_bits(log_n, "p_bits", p_bits, p_count, err)) != CKKS_OK) return rc;
    if ((rc = choose_p(&p, p_bits, true, err)) != CKKS_OK) return rc;
    if ((rc = choose_q(&p, q_bits, err)) != CKKS_OK) return rc;
    if ((rc = choose_p(&p, p_bits, false, err)) != CKKS_OK) return rc;
    if ((rc = params_finish(&p, err)) != CKKS_OK) return rc;
    *out = p;
    return CKKS_OK;
}

/* ---- the security gate ---- */

/* Security Guidelines for Implementing Homomorphic Encryption, ePrint 2024/463: classical, ternary secret,
 * error deviation at least 3.19. No interpolation. */
static const struct {
    uint32_t log_n;
    uint32_t log_qp_max[3]; /* 128, 192, 256 bits */
} gate_table[] = {
    {12, {106, 73, 56}},   {13, {214, 147, 114}},   {14, {430, 297, 230}},
    {15, {868, 597, 462}}, {16, {1747, 1199, 929}}, {17, {3523, 2411, 1866}},
};

uint32_t params_log_qp(const ckks_params *params) {
    uint64_t product[BIGINT_WORDS_MAX];
    bigint_product(product, BIGINT_WORDS_MAX, params->prime, params_prime_count(params));
    /* ceil(log2 x) is the width of x - 1; the product is odd, so this never borrows */
    product[0] -= 1;
    return bigint_bits(product, BIGINT_WORDS_MAX);
}

uint32_t params_log_qp_max(uint32_t log_n, uint32_t security_bits) {
    const uint32_t column = security_bits == 128   ? 0
                            : security_bits == 192 ? 1
                            : security_bits == 256 ? 2
                                                   : 3;
    if (column == 3) return 0;
    for (size_t i = 0; i < sizeof gate_table / sizeof *gate_table; i++)
        if (gate_table[i].log_n == log_n) return gate_table[i].log_qp_max[column];
    return 0;
}

uint32_t params_security_bits(const ckks_params *params) {
    static const uint32_t levels[] = {256, 192, 128};
    const uint32_t log_qp = params_log_qp(params);
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (log_qp <= params_log_qp_max(params->log_n, levels[i])) return levels[i];
    return 0;
}

ckks_status params_gate(const ckks_params *params, uint32_t security_bits, ckks_error *err) {
    const uint32_t log_qp = params_log_qp(params), limit = params_log_qp_max(params->log_n, security_bits);
    if (limit == 0)
        return ckks_error_set(err, CKKS_INSECURE_PARAMETERS, "log_n",
                              "the table has no entry for N = 2^%u at %u bits of security", params->log_n,
                              security_bits);
    if (log_qp > limit)
        return ckks_error_set(err, CKKS_INSECURE_PARAMETERS, "log_qp",
                              "log QP is %u, over %u for N = 2^%u at %u bits of security", log_qp, limit,
                              params->log_n, security_bits);
    return CKKS_OK;
}
