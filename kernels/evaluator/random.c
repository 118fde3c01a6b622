/*
 * Rerandomisation: adds a fresh encryption of zero under the client's public key. Each draw takes its own
 * blocks of the stream: the offset within a run is counted here, on the host, and is the same in each run;
 * the counter that makes runs differ lives in device memory and is advanced by a recorded kernel.
 */
#include "kernels/evaluator/evaluator_internal.h"

#include <string.h>

#define FLOOD_BITS_MAX 48u

static ckks_status sample(evaluator *ev, uint64_t *words, uint32_t level, sample_kind kind,
                          uint32_t flood_bits, ckks_error *err) {
    const kernel_sample_args args = {
        .tables = ev->tables,
        .out = {words, 1, level + 1, basis_q(level)},
        .random = ev->random,
        .block_offset = ev->random_blocks,
        .kind = kind,
        .flood_bits = flood_bits,
    };
    const ckks_status rc = device_launch(ev->stream, KERNEL_SAMPLE, &args, err);
    if (rc == CKKS_OK) ev->random_blocks += sample_block_count(kind, evaluator_n(ev));
    return rc;
}

/* mask[batch][2][limb][N] = v * public key, v ternary */
static ckks_status mask_acquire(evaluator *ev, ckks_value *mask, uint32_t batch, uint32_t level,
                                uint32_t public_key, ckks_error *err) {
    ckks_status rc;
    uint64_t *ternary = NULL;
    const uint64_t polynomial = (uint64_t)(level + 1) * evaluator_n(ev);
    if ((rc = value_acquire(ev, mask, 2, batch, level, 1, err)) != CKKS_OK) goto out;
    if ((rc = scratch_acquire(ev, &ternary, batch * polynomial, err)) != CKKS_OK) goto out;
    for (uint32_t i = 0; i < batch; i++)
        if ((rc = sample(ev, ternary + i * polynomial, level, SAMPLE_TERNARY, 0, err)) != CKKS_OK) goto out;
    const kernel_poly all = {ternary, batch, level + 1, basis_q(level)};
    if ((rc = launch_unary(ev, KERNEL_NTT_FORWARD, all, all, err)) != CKKS_OK) goto out;
    const kernel_key_product_args args = {
        .tables = ev->tables,
        .out = mask->words,
        .out_count = batch,
        .level = level,
        .digits = ternary,
        .digits_count = batch,
        .keys = ev->keys,
        .key_count = ev->key_count,
        .item_count = batch,
        .uniform = {.key = public_key, .galois_element = 1},
        .is_public = 1,
    };
    rc = device_launch(ev->stream, KERNEL_KEY_PRODUCT, &args, err);
out:
    scratch_release(ev, &ternary);
    if (rc != CKKS_OK) evaluator_release(ev, mask);
    return rc;
}

/* noise: `kind` in the first `component_count` components of each entry, transformed. Shape as `noise`. */
static ckks_status noise_draw(evaluator *ev, ckks_value *noise, sample_kind kind, uint32_t flood_bits,
                              ckks_error *err) {
    ckks_status rc;
    const uint32_t level = value_level(noise);
    const uint32_t count = noise->signature.batch_count * noise->signature.component_count;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t *words = noise->words + (uint64_t)i * (level + 1) * evaluator_n(ev);
        if ((rc = sample(ev, words, level, kind, flood_bits, err)) != CKKS_OK) return rc;
    }
    return launch_unary(ev, KERNEL_NTT_FORWARD, value_all(noise, level), value_all(noise, level), err);
}

/* next = sum + noise of one kind; sum is released */
static ckks_status noise_add(evaluator *ev, ckks_value *sum, sample_kind kind, uint32_t component_count,
                             uint32_t flood_bits, ckks_error *err) {
    ckks_status rc;
    ckks_value noise = {0}, next = {0};
    const value_signature *s = &sum->signature;
    if ((rc = value_acquire(ev, &noise, component_count, s->batch_count, s->limb_count - 1, s->scale, err)) !=
        CKKS_OK)
        goto out;
    if ((rc = noise_draw(ev, &noise, kind, flood_bits, err)) != CKKS_OK) goto out;
    if ((rc = evaluator_add(ev, &next, sum, &noise, err)) != CKKS_OK) goto out;
    evaluator_release(ev, sum);
    *sum = next;
out:
    evaluator_release(ev, &noise);
    return rc;
}

ckks_status evaluator_rerandomise(evaluator *ev, ckks_value *out, const ckks_value *a, uint32_t public_key,
                                  uint32_t flood_bits, ckks_error *err) {
    ckks_status rc;
    ckks_value mask = {0}, sum = {0};
    memset(out, 0, sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 2, err)) != CKKS_OK) return rc;
    if ((rc = key_check(ev, public_key, "public_key", err)) != CKKS_OK) return rc;
    if (!ev->random)
        return ckks_error_set(err, CKKS_FAILED_PRECONDITION, "random", "this evaluator has no random stream");
    if (flood_bits > FLOOD_BITS_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "flood_bits", "%u; at most %u", flood_bits,
                              FLOOD_BITS_MAX);
    if ((rc = mask_acquire(ev, &mask, a->signature.batch_count, value_level(a), public_key, err)) != CKKS_OK)
        goto out;
    mask.signature.scale = a->signature.scale; /* an encryption of zero has any scale */
    if ((rc = evaluator_add(ev, &sum, a, &mask, err)) != CKKS_OK) goto out;
    evaluator_release(ev, &mask);
    if ((rc = noise_add(ev, &sum, SAMPLE_ERROR, 2, 0, err)) != CKKS_OK) goto out;
    if (flood_bits && (rc = noise_add(ev, &sum, SAMPLE_FLOOD, 1, flood_bits, err)) != CKKS_OK) goto out;
    *out = sum, sum = (ckks_value){0};
out:
    evaluator_release(ev, &mask);
    evaluator_release(ev, &sum);
    return rc;
}

ckks_status evaluator_random_finish(evaluator *ev, ckks_error *err) {
    if (!ev->random_blocks) return CKKS_OK;
    const kernel_counter_args args = {ev->tables, ev->random, ev->random_blocks};
    const ckks_status rc = device_launch(ev->stream, KERNEL_COUNTER_ADVANCE, &args, err);
    if (rc == CKKS_OK) ev->random_blocks = 0;
    return rc;
}
