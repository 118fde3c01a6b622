/*
 * What many tests need: small parameter sets, contexts, a reproducible generator of random words and
 * residue patterns that are hard on reductions. A fixture that cannot be made aborts the test.
 */
#ifndef CKKS_TESTS_FIXTURES_H
#define CKKS_TESTS_FIXTURES_H

#include "kernels/device.h"
#include "kernels/scheme/params.h"

/* The kind of device that tests run on: the CPU's, or what CKKSD_TEST_DEVICE says (cpu, cuda). */
device_kind fixture_device_kind(void);
/* fixture_open_device: a device of that kind, which the caller closes. A card that was asked for and cannot
 * be had ends the test program with 1 and the reason: a test that is skipped looks like one that holds. */
device *fixture_open_device(uint32_t threads);
/* fixture_is_short: CKKSD_TEST_SHORT is set: the tests run under a tool that makes each launch a hundred
 * times as long (compute-sanitizer). Fewer rounds then, and no claim that two things run side by side. */
bool fixture_is_short(void);
/* device_set_adversarial_order, where the device lets somebody else choose: a card chooses itself. */
ckks_status fixture_adversarial_order(device *dev, uint64_t seed, ckks_error *err);

/* Reproducible: the same seed gives the same sequence everywhere (xoshiro256** seeded by splitmix64). */
typedef struct prng {
    uint64_t state[4];
} prng;
void prng_init(prng *r, uint64_t seed);
uint64_t prng_u64(prng *r);
/* uniform in [0, bound), bound > 0 */
uint64_t prng_below(prng *r, uint64_t bound);
/* uniform in [-1, 1), a multiple of 2^-52 */
double prng_symmetric(prng *r);

/* fixture_params: q[0] of 45 bits, the others of 35, p of 46 bits (50 if the digits need it); not over any
 * table: test use only. fixture_params_bits: q0_bits, q_bits, p_bits as stated. */
ckks_params fixture_params(uint32_t log_n, uint32_t q_count, uint32_t p_count, uint32_t digit_size);
ckks_params fixture_params_bits(uint32_t log_n, uint32_t q_count, uint32_t p_count, uint32_t digit_size,
                                uint32_t q0_bits, uint32_t q_bits, uint32_t p_bits);
/* The caller destroys the context with context_destroy. */
ckks_context *fixture_context(uint32_t log_n, uint32_t q_count, uint32_t p_count, uint32_t digit_size);
ckks_context *fixture_context_of(const ckks_params *params);

/* fixture_random_words: n words below `bound`. */
void fixture_random_words(uint64_t *words, size_t n, uint64_t bound, prng *r);
/* fixture_random_poly: [q[0..level], then all p if with_p][N] canonical residues, independent per limb. */
void fixture_random_poly(uint64_t *words, const ckks_params *params, uint32_t level, bool with_p, prng *r);
/* fixture_adversarial_words: pattern 0 .. FIXTURE_PATTERNS - 1: all 0, all 1, all q-1, all (q-1)/2, all
 * (q+1)/2, q-1 and 0 in turn, 0 and q-1 in turn, q-1 once and else 0, and a random mix of the edge values. */
#define FIXTURE_PATTERNS 9u
void fixture_adversarial_words(uint64_t *words, size_t n, uint64_t prime, uint32_t pattern);

#endif
