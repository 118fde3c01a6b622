#include "tests/support/fixtures.h"

#include "kernels/device_graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

device_kind fixture_device_kind(void) {
    const char *kind = getenv("CKKSD_TEST_DEVICE");
    return kind && strcmp(kind, "cuda") == 0 ? DEVICE_CUDA : DEVICE_CPU;
}

device *fixture_open_device(uint32_t threads) {
    ckks_error err = {0};
    device *dev = NULL;
    const device_config config = {.kind = fixture_device_kind(), .threads = threads};
    const ckks_status rc = device_open(&dev, &config, &err);
    if (rc == CKKS_OK) return dev;
    if (config.kind != DEVICE_CUDA) abort();
    fflush(NULL);
    fprintf(stderr, "CKKSD_TEST_DEVICE=cuda asks for a card, and none can be had: %s (%s)\n", err.message,
            ckks_status_name(rc));
    exit(1);
}

bool fixture_is_short(void) {
    return getenv("CKKSD_TEST_SHORT") != NULL;
}

ckks_status fixture_adversarial_order(device *dev, uint64_t seed, ckks_error *err) {
    return device_get_kind(dev) == DEVICE_CPU ? device_set_adversarial_order(dev, seed, err) : CKKS_OK;
}

static uint64_t rotate_left(uint64_t x, unsigned k) {
    return x << k | x >> (64 - k);
}

void prng_init(prng *r, uint64_t seed) {
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += 0x9E3779B97F4A7C15ull;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        r->state[i] = z ^ z >> 31;
    }
}

uint64_t prng_u64(prng *r) {
    uint64_t *s = r->state;
    const uint64_t result = rotate_left(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0], s[3] ^= s[1], s[1] ^= s[2], s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

uint64_t prng_below(prng *r, uint64_t bound) {
    return (uint64_t)(((unsigned __int128)prng_u64(r) * bound) >> 64);
}

double prng_symmetric(prng *r) {
    return (double)(int64_t)(prng_u64(r) >> 11) * 0x1p-52 - 1.0;
}

static void fail(const char *what, const ckks_error *err) {
    char text[512];
    fprintf(stderr, "fixture: %s: %s\n", what, ckks_error_print(err, text, sizeof text));
    abort();
}

ckks_params fixture_params_bits(uint32_t log_n, uint32_t q_count, uint32_t p_count, uint32_t digit_size,
                                uint32_t q0_bits, uint32_t q_bits, uint32_t p_bits) {
    uint32_t q[CKKS_PRIMES_MAX], p[CKKS_PRIMES_MAX];
    for (uint32_t i = 0; i < CKKS_PRIMES_MAX; i++) q[i] = i ? q_bits : q0_bits, p[i] = p_bits;
    ckks_params params;
    ckks_error err = {0};
    if (params_generate(&params, log_n, q, q_count, p, p_count, digit_size, &err) != CKKS_OK)
        fail("parameters", &err);
    return params;
}

ckks_params fixture_params(uint32_t log_n, uint32_t q_count, uint32_t p_count, uint32_t digit_size) {
    return fixture_params_bits(log_n, q_count, p_count, digit_size, 45, 35,
                               p_count >= digit_size ? 46 : CKKS_PRIME_BITS_MAX);
}

ckks_context *fixture_context_of(const ckks_params *params) {
    ckks_context *context = NULL;
    ckks_error err = {0};
    if (context_create(&context, params, &err) != CKKS_OK) fail("context", &err);
    return context;
}

ckks_context *fixture_context(uint32_t log_n, uint32_t q_count, uint32_t p_count, uint32_t digit_size) {
    const ckks_params params = fixture_params(log_n, q_count, p_count, digit_size);
    return fixture_context_of(&params);
}

void fixture_random_words(uint64_t *words, size_t n, uint64_t bound, prng *r) {
    for (size_t i = 0; i < n; i++) words[i] = prng_below(r, bound);
}

void fixture_random_poly(uint64_t *words, const ckks_params *params, uint32_t level, bool with_p, prng *r) {
    const size_t n = params_n(params);
    for (uint32_t i = 0; i <= level; i++) fixture_random_words(words + i * n, n, params->prime[i], r);
    for (uint32_t i = 0; with_p && i < params->p_count; i++)
        fixture_random_words(words + (level + 1 + i) * n, n, params->prime[params->q_count + i], r);
}

void fixture_adversarial_words(uint64_t *words, size_t n, uint64_t prime, uint32_t pattern) {
    const uint64_t edge[] = {0, 1, prime - 1, (prime - 1) / 2, (prime + 1) / 2, prime - 2};
    prng r;
    prng_init(&r, prime ^ pattern);
    for (size_t i = 0; i < n; i++) {
        if (pattern < 5)
            words[i] = edge[pattern];
        else if (pattern < 7)
            words[i] = (i + pattern) % 2 ? prime - 1 : 0;
        else if (pattern == 7)
            words[i] = i == n / 2 ? prime - 1 : 0;
        else
            words[i] = edge[prng_below(&r, sizeof edge / sizeof *edge)];
    }
}
