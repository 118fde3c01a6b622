/*
 * CKKS parameters: ring degree, moduli, key-switching digits; their identity and the security gate.
 *
 * The full prime list is all q first, then all p. Level l uses q[0..l] (limb count l + 1); rescaling at level
 * l drops q[l]. A digit is `digit_size` consecutive q primes; at level l the last digit may be shorter.
 * Without any p there is no key switching: for programs that need no evaluation keys.
 *
 * A ckks_params is a plain value: copy it freely. A ckks_context adds the tables that arithmetic needs, is
 * immutable after creation and may be used by any number of threads.
 */
#ifndef CKKS_SCHEME_PARAMS_H
#define CKKS_SCHEME_PARAMS_H

#include "kernels/base/status.h"

#include <stddef.h>

#define CKKS_LOG_N_MIN          10u
#define CKKS_LOG_N_MAX          17u
#define CKKS_PRIMES_MAX         80u /* q and p together */
#define CKKS_DIGIT_SIZE_MAX     16u /* primes of one key-switching digit */
#define CKKS_PRIME_BITS_MAX     50u /* every modulus is below 2^50 */
#define CKKS_PARAMETER_ID_BYTES 32u

typedef enum ckks_secret_distribution { CKKS_SECRET_UNIFORM_TERNARY = 1 } ckks_secret_distribution;
typedef enum ckks_transform_order { CKKS_TRANSFORM_BIT_REVERSED = 1 } ckks_transform_order;

typedef struct ckks_params {
    uint32_t log_n;
    uint32_t q_count;
    uint32_t p_count;
    uint32_t digit_size;                 /* alpha: q primes per digit */
    uint32_t secret_distribution;        /* ckks_secret_distribution */
    uint32_t transform_order;            /* ckks_transform_order */
    uint64_t prime[CKKS_PRIMES_MAX];     /* q then p */
    uint64_t psi[CKKS_PRIMES_MAX];       /* primitive 2N-th root of unity of each */
    uint8_t id[CKKS_PARAMETER_ID_BYTES]; /* SHA-256 over the canonical bytes, filled by params_finish */
} ckks_params;

static inline uint32_t params_n(const ckks_params *p) {
    return 1u << p->log_n;
}
static inline uint32_t params_slot_count_max(const ckks_params *p) {
    return 1u << (p->log_n - 1);
}
static inline uint32_t params_level_max(const ckks_params *p) {
    return p->q_count - 1;
}
static inline uint32_t params_prime_count(const ckks_params *p) {
    return p->q_count + p->p_count;
}
/* params_digit_count: digits at `level`; params_digit_count_full: at the highest level (dnum). */
static inline uint32_t params_digit_count(const ckks_params *p, uint32_t level) {
    return (level + 1 + p->digit_size - 1) / p->digit_size;
}
static inline uint32_t params_digit_count_full(const ckks_params *p) {
    return params_digit_count(p, params_level_max(p));
}

/*
 * params_finish validates (ranges, distinct NTT primes = 1 mod 2N below 2^50, psi primitive, each digit's
 * product at most P) and computes `id`. psi[i] == 0 asks for the smallest primitive 2N-th root. It does not
 * run the security gate. CKKS_INVALID_ARGUMENT names the field.
 */
ckks_status params_finish(ckks_params *params, ckks_error *err);

/*
 * params_generate chooses primes: q_bits[q_count] and p_bits[p_count] are nominal sizes, and primes are
 * picked nearest to 2^bits, ordered (greedily) so that the product of dropped primes, hence the scale, stays
 * closest to nominal. Deterministic. Ends in params_finish.
 */
ckks_status params_generate(ckks_params *out, uint32_t log_n, const uint32_t *q_bits, uint32_t q_count,
                            const uint32_t *p_bits, uint32_t p_count, uint32_t digit_size, ckks_error *err);

/* ---- the security gate (classical, uniform ternary secret, error deviation at least 3.19; ePrint 2024/463)
 * ---- */

/* params_log_qp is the exact ceil(log2 of the product of all q and p). */
uint32_t params_log_qp(const ckks_params *params);
/* params_log_qp_max is the table's entry; 0 where the table has none. bits: 128, 192 or 256. */
uint32_t params_log_qp_max(uint32_t log_n, uint32_t security_bits);
/* params_security_bits is the largest of 256, 192, 128 that the set reaches; 0 = insecure. */
uint32_t params_security_bits(const ckks_params *params);
/* params_gate: CKKS_INSECURE_PARAMETERS with both numbers in the message if over the limit for
 * `security_bits`. */
ckks_status params_gate(const ckks_params *params, uint32_t security_bits, ckks_error *err);

/* ---- context ---- */

typedef struct ckks_context ckks_context;

/* context_create builds all tables; the caller owns *out and returns it with context_destroy (NULL is fine).
 * `params` must come from params_finish. Takes milliseconds to a second; no I/O. */
ckks_status context_create(ckks_context **out, const ckks_params *params, ckks_error *err);
void context_destroy(ckks_context *context);
const ckks_params *context_params(const ckks_context *context);

#endif
