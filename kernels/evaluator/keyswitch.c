/*
 * Hybrid key switching (Han and Ki, "Better bootstrapping for approximate homomorphic encryption", 2020; with
 * the centred conversions of kernels.h): decompose into digits over QP, multiply by the key, divide by P. The
 * part that needs no key is added before the division, as a multiple of P, so that a merged rescale rounds
 * once.
 */
#include "kernels/evaluator/evaluator_internal.h"

#include <stdlib.h>
#include <string.h>

ckks_status launch_mod_up(evaluator *ev, uint64_t **digits, const uint64_t *words, uint32_t batch_stride,
                          uint32_t batch_count, uint32_t level, ckks_error *err) {
    ckks_status rc;
    const ckks_params *params = evaluator_params(ev);
    const uint64_t n = params_n(params), limbs = (uint64_t)level + 1;
    kernel_mod_up_args args = {
        .tables = ev->tables,
        .a = {(uint64_t *)(uintptr_t)words, 1, level + 1, basis_q(level)},
        .a_batch_stride = batch_stride,
        .batch_count = batch_count,
    };
    rc = scratch_acquire(
        ev, digits, batch_count * params_digit_count(params, level) * (limbs + params->p_count) * n, err);
    if (rc == CKKS_OK) rc = scratch_acquire(ev, &args.scratch, batch_count * limbs * n, err);
    args.out = *digits;
    if (rc == CKKS_OK) rc = device_launch(ev->stream, KERNEL_MOD_UP, &args, err);
    scratch_release(ev, &args.scratch);
    if (rc != CKKS_OK) scratch_release(ev, digits);
    return rc;
}

ckks_status launch_mod_down(evaluator *ev, kernel_mod_down_args *args, ckks_error *err) {
    const ckks_params *params = evaluator_params(ev);
    const uint64_t limbs = params->p_count + 2 * (uint64_t)args->a.basis.q_count;
    args->tables = ev->tables;
    ckks_status rc = scratch_acquire(
        ev, &args->scratch, (uint64_t)args->batch_count * args->a.component_count * limbs * params_n(params),
        err);
    if (rc == CKKS_OK) rc = device_launch(ev->stream, KERNEL_MOD_DOWN, args, err);
    scratch_release(ev, &args->scratch);
    return rc;
}

ckks_status key_switch_into(evaluator *ev, ckks_value *out, const ckks_value *a, uint32_t from,
                            uint32_t kept_count, uint32_t key, uint32_t galois_element, bool with_rescale,
                            ckks_error *err) {
    ckks_status rc;
    const ckks_params *params = evaluator_params(ev);
    const uint32_t level = value_level(a), limbs = level + 1, batch = a->signature.batch_count;
    const uint64_t n = params_n(params);
    kernel_key_switch_args args = {
        .tables = ev->tables,
        .out = {out->words, 2, out->signature.limb_count, basis_q(value_level(out))},
        .a = {a->words + (uint64_t)from * limbs * n, 1, limbs, basis_q(level)},
        .add = {a->words, kept_count, limbs, basis_q(level)},
        .key = key,
        .galois_element = galois_element,
        .batch_count = batch,
        .out_batch_stride = value_stride(out),
        .a_batch_stride = value_stride(a),
        .add_batch_stride = value_stride(a),
        .with_rescale = with_rescale,
        .keys = ev->keys,
        .key_count = ev->key_count,
    };
    rc = scratch_acquire(ev, &args.scratch, key_switch_scratch(params, limbs, batch) * n, err);
    if (rc == CKKS_OK) rc = device_launch(ev->stream, KERNEL_KEY_SWITCH, &args, err);
    scratch_release(ev, &args.scratch);
    return rc;
}

ckks_status evaluator_relinearise(evaluator *ev, ckks_value *out, const ckks_value *a, uint32_t relin_key,
                                  bool with_rescale, ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    memset(out, 0, sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 3, err)) != CKKS_OK) return rc;
    if ((rc = key_check(ev, relin_key, "relin_key", err)) != CKKS_OK) return rc;
    const uint32_t level = value_level(a);
    double scale = a->signature.scale;
    if (with_rescale) {
        if (!level)
            return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "limb_count",
                                  "no prime is left to rescale by");
        scale = scale_rescaled(evaluator_params(ev), scale, level);
    }
    rc = value_acquire(ev, &v, 2, a->signature.batch_count, with_rescale ? level - 1 : level, scale, err);
    if (rc == CKKS_OK) rc = key_switch_into(ev, &v, a, 2, 2, relin_key, 1, with_rescale, err);
    if (rc == CKKS_OK)
        *out = v;
    else
        evaluator_release(ev, &v);
    return rc;
}

ckks_status evaluator_apply_galois(evaluator *ev, ckks_value *out, const ckks_value *a, galois_step step,
                                   ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    memset(out, 0, sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 2, err)) != CKKS_OK) return rc;
    if ((rc = steps_check(evaluator_params(ev), &step, 1, false, "step", err)) != CKKS_OK) return rc;
    if (step.galois_element == 1) return evaluator_drop_level(ev, out, a, value_level(a), err);
    if ((rc = key_check(ev, step.key, "step", err)) != CKKS_OK) return rc;
    rc = value_acquire(ev, &v, 2, a->signature.batch_count, value_level(a), a->signature.scale, err);
    if (rc == CKKS_OK) rc = key_switch_into(ev, &v, a, 1, 1, step.key, step.galois_element, false, err);
    if (rc == CKKS_OK)
        *out = v;
    else
        evaluator_release(ev, &v);
    return rc;
}

/* ---- hoisted rotations ---- */

struct hoisted_rotations {
    device *dev;
    uint32_t count, switched_count; /* steps; those that need a key */
    uint32_t key_max;               /* highest key index */
    uint32_t *position;             /* [count] place of each result: the switched ones come first */
    key_product_item *items;        /* [switched_count] each into its own place */
    key_product_item *sum_items;    /* [switched_count] all into one */
    void *items_device, *sum_items_device;
};

void hoisted_rotations_destroy(hoisted_rotations *h) {
    if (!h) return;
    device_free(h->dev, h->items_device);
    device_free(h->dev, h->sum_items_device);
    free(h->items);
    free(h->sum_items);
    free(h->position);
    free(h);
}

ckks_status hoisted_rotations_create(hoisted_rotations **out, device *dev, const ckks_context *context,
                                     const galois_step *steps, uint32_t count, ckks_error *err) {
    ckks_status rc;
    hoisted_rotations *h = NULL;
    if (!count || count > HOISTED_STEPS_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "steps", "%u steps; 1 to %u", count,
                              HOISTED_STEPS_MAX);
    if ((rc = steps_check(context_params(context), steps, count, false, "steps", err)) != CKKS_OK) goto out;
    h = calloc(1, sizeof *h);
    if (h) h->position = calloc(count, sizeof *h->position);
    if (h) h->items = calloc(count, sizeof *h->items);
    if (h) h->sum_items = calloc(count, sizeof *h->sum_items);
    if (!h || !h->position || !h->items || !h->sum_items) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "steps", "no memory");
        goto out;
    }
    h->dev = dev;
    h->count = count;
    for (uint32_t i = 0; i < count; i++) {
        if (steps[i].galois_element == 1) continue;
        const uint32_t t = h->switched_count++;
        h->position[i] = t;
        h->items[t] = (key_product_item){0, steps[i].key, steps[i].galois_element, t};
        h->sum_items[t] = (key_product_item){0, steps[i].key, steps[i].galois_element, 0};
        if (steps[i].key > h->key_max) h->key_max = steps[i].key;
    }
    for (uint32_t i = 0, next = h->switched_count; i < count; i++)
        if (steps[i].galois_element == 1) h->position[i] = next++;
    rc = descriptors_upload(&h->items_device, dev, h->items, h->switched_count * sizeof *h->items, err);
    if (rc != CKKS_OK) goto out;
    rc = descriptors_upload(&h->sum_items_device, dev, h->sum_items, h->switched_count * sizeof *h->sum_items,
                            err);
    if (rc != CKKS_OK) goto out;
    *out = h, h = NULL;
out:
    hoisted_rotations_destroy(h);
    return rc;
}

/* hoist_entry in one launch */
static ckks_status hoist_at_once(evaluator *ev, uint64_t *to, uint32_t result_stride,
                                 const hoisted_rotations *h, const uint64_t *words, uint32_t level,
                                 bool is_sum, ckks_error *err) {
    const uint32_t limbs = level + 1, n = evaluator_n(ev);
    kernel_hoisted_switch_args args = {
        .tables = ev->tables,
        .out = {to, 2, limbs, basis_q(level)},
        .a = {(uint64_t *)(uintptr_t)words + (uint64_t)limbs * n, 1, limbs, basis_q(level)},
        .add = {(uint64_t *)(uintptr_t)words, 1, limbs, basis_q(level)},
        .out_count = is_sum ? 1 : h->switched_count,
        .out_batch_stride = result_stride,
        .keys = ev->keys,
        .key_count = ev->key_count,
        .items = is_sum ? h->sum_items_device : h->items_device,
        .items_host = is_sum ? h->sum_items : h->items,
        .item_count = h->switched_count,
    };
    ckks_status rc = scratch_acquire(
        ev, &args.scratch, hoisted_switch_scratch(evaluator_params(ev), limbs, args.out_count) * n, err);
    if (rc == CKKS_OK) rc = device_launch(ev->stream, KERNEL_HOISTED_SWITCH, &args, err);
    scratch_release(ev, &args.scratch);
    return rc;
}

/* One batch entry: all results at `to`, which advance by result_stride limbs; with is_sum their sum alone. */
static ckks_status hoist_entry(evaluator *ev, uint64_t *to, uint32_t result_stride,
                               const hoisted_rotations *h, const ckks_value *a, uint32_t entry, bool is_sum,
                               ckks_error *err) {
    ckks_status rc;
    uint64_t *digits = NULL, *product = NULL;
    const ckks_params *params = evaluator_params(ev);
    const uint32_t level = value_level(a), limbs = level + 1, limbs_qp = limbs + params->p_count;
    const uint32_t result_count = is_sum ? 1 : h->switched_count;
    const uint64_t n = params_n(params);
    const uint64_t *words = a->words + (uint64_t)entry * 2 * limbs * n;
    if (device_has_kernel(device_stream_device(ev->stream), KERNEL_HOISTED_SWITCH))
        return hoist_at_once(ev, to, result_stride, h, words, level, is_sum, err);
    if ((rc = launch_mod_up(ev, &digits, words + limbs * n, 0, 1, level, err)) != CKKS_OK) goto out;
    if ((rc = scratch_acquire(ev, &product, (uint64_t)result_count * 2 * limbs_qp * n, err)) != CKKS_OK)
        goto out;
    const kernel_key_product_args product_args = {
        .tables = ev->tables,
        .out = product,
        .out_count = result_count,
        .level = level,
        .digits = digits,
        .digits_count = 1,
        .add = words,
        .add_stride = 2 * limbs,
        .keys = ev->keys,
        .key_count = ev->key_count,
        .items = is_sum ? h->sum_items_device : h->items_device,
        .items_host = is_sum ? h->sum_items : h->items,
        .item_count = h->switched_count,
    };
    if ((rc = device_launch(ev->stream, KERNEL_KEY_PRODUCT, &product_args, err)) != CKKS_OK) goto out;
    scratch_release(ev, &digits);
    kernel_mod_down_args down = {
        .out = {to, 2, limbs, basis_q(level)},
        .a = {product, 2, limbs_qp, basis_qp(params, level)},
        .add_galois_element = 1,
        .batch_count = result_count,
        .out_batch_stride = result_stride,
        .a_batch_stride = 2 * limbs_qp,
    };
    rc = launch_mod_down(ev, &down, err);
out:
    scratch_release(ev, &digits);
    scratch_release(ev, &product);
    return rc;
}

static ckks_status hoist_all(evaluator *ev, uint8_t *memory, const hoisted_rotations *h, const ckks_value *a,
                             ckks_error *err) {
    ckks_status rc = CKKS_OK;
    const uint32_t level = value_level(a), stride = value_stride(a), n = evaluator_n(ev);
    const uint32_t batch = a->signature.batch_count;
    uint64_t *words = (uint64_t *)(void *)memory;
    if (h->switched_count)
        for (uint32_t i = 0; i < batch && rc == CKKS_OK; i++)
            rc = hoist_entry(ev, words + (uint64_t)i * stride * n, batch * stride, h, a, i, false, err);
    for (uint32_t k = h->switched_count; k < h->count && rc == CKKS_OK; k++) {
        ckks_value copy = *a;
        copy.words = (uint64_t *)(void *)(memory + k * a->signature.bytes);
        rc = launch_unary(ev, KERNEL_COPY, value_all(&copy, level), value_all(a, level), err);
    }
    return rc;
}

/* whether each result has the place of its step */
static bool is_in_order(const hoisted_rotations *h) {
    uint32_t i = 0;
    while (i < h->count && h->position[i] == i) i++;
    return i == h->count;
}

ckks_status evaluator_rotate_hoisted(evaluator *ev, ckks_value *out, const hoisted_rotations *h,
                                     const ckks_value *a, ckks_error *err) {
    ckks_status rc;
    void *memory = NULL;
    memset(out, 0, h->count * sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 2, err)) != CKKS_OK) return rc;
    if (h->switched_count && (rc = key_check(ev, h->key_max, "steps", err)) != CKKS_OK) return rc;
    if (is_in_order(h)) memory = place_take(ev, &a->signature, h->count);
    /* bytes of a value are a multiple of N words, hence of the alignment */
    if (!memory) rc = workspace_acquire_parts(ev->memory, &memory, a->signature.bytes, h->count, err);
    if (rc != CKKS_OK) return rc;
    rc = hoist_all(ev, memory, h, a, err);
    for (uint32_t i = 0; i < h->count; i++) {
        uint8_t *part = (uint8_t *)memory + h->position[i] * a->signature.bytes;
        if (rc == CKKS_OK)
            out[i] = (ckks_value){a->signature, (uint64_t *)(void *)part};
        else
            workspace_release(ev->memory, part);
    }
    return rc;
}

ckks_status evaluator_sum_hoisted(evaluator *ev, ckks_value *out, const hoisted_rotations *h,
                                  const ckks_value *a, ckks_error *err) {
    ckks_status rc;
    ckks_value v = {0};
    const uint32_t level = value_level(a), batch = a->signature.batch_count, n = evaluator_n(ev);
    uint32_t added = 0; /* identity steps so far */
    memset(out, 0, sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 2, err)) != CKKS_OK) return rc;
    if (h->switched_count && (rc = key_check(ev, h->key_max, "steps", err)) != CKKS_OK) return rc;
    if ((rc = value_acquire(ev, &v, 2, batch, level, a->signature.scale, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; h->switched_count && i < batch && rc == CKKS_OK; i++)
        rc = hoist_entry(ev, v.words + (uint64_t)i * value_stride(&v) * n, 0, h, a, i, true, err);
    if (!h->switched_count) {
        rc = launch_unary(ev, KERNEL_COPY, value_all(&v, level), value_all(a, level), err);
        added = 1;
    }
    for (; added < h->count - h->switched_count && rc == CKKS_OK; added++)
        rc = launch_binary(ev, KERNEL_ADD, value_all(&v, level), value_all(&v, level), value_all(a, level),
                           err);
    if (rc == CKKS_OK)
        *out = v;
    else
        evaluator_release(ev, &v);
    return rc;
}
