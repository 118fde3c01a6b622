/*
 * Linear transform, baby-step giant-step with double hoisting (Bossuat, Mouchet, Troncoso-Pastoriza and
 * Hubaux, "Efficient bootstrapping for approximate homomorphic encryption with non-sparse keys", 2021): baby
 * steps stay over QP, so that a diagonal costs one product and no division by P.
 *
 * The launches are the same few for any number of diagonals: the identity step is kept last in the lists of
 * babies and giants, so that the others are one contiguous batch.
 */
#include "kernels/evaluator/evaluator_internal.h"

#include <stdlib.h>
#include <string.h>

struct linear_transform {
    device *dev;
    uint32_t level;
    bool with_rescale;
    double plain_scale;
    uint32_t result_count; /* more than one: a result for each giant */
    uint32_t key_max;
    uint32_t baby_count, baby_switched; /* babies in use; those that need a key */
    uint32_t giant_count, giant_switched;
    uint32_t term_count;
    key_product_item *baby_items, *giant_items;
    permute_item *permutes; /* [giant_count]: each V_g.0 into place */
    diagonal_item *diagonals;
    void *baby_items_device, *giant_items_device, *permutes_device, *diagonals_device;
};

void linear_transform_destroy(linear_transform *lt) {
    if (!lt) return;
    device_free(lt->dev, lt->baby_items_device);
    device_free(lt->dev, lt->giant_items_device);
    device_free(lt->dev, lt->permutes_device);
    device_free(lt->dev, lt->diagonals_device);
    free(lt->baby_items);
    free(lt->giant_items);
    free(lt->permutes);
    free(lt->diagonals);
    free(lt);
}

/* What create is given. */
typedef struct transform_input {
    const galois_step *babies, *giants;
    const linear_transform_term *terms;
    uint32_t baby_count, giant_count, term_count;
} transform_input;

/* several giants, none of which rotates */
static bool has_many_results(const transform_input *in) {
    for (uint32_t i = 0; i < in->giant_count; i++)
        if (in->giants[i].galois_element != 1) return false;
    return in->giant_count > 1;
}

static ckks_status input_check(const transform_input *in, const ckks_params *params, uint32_t level,
                               bool with_rescale, ckks_error *err) {
    ckks_status rc;
    if (level > params_level_max(params) || (with_rescale && !level))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "level", "level %u", level);
    if (!in->term_count || in->term_count > LINEAR_TRANSFORM_TERMS_MAX ||
        in->baby_count > LINEAR_TRANSFORM_STEPS_MAX || in->giant_count > LINEAR_TRANSFORM_STEPS_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "terms",
                              "%u terms of %u baby and %u giant steps; at most %u and %u", in->term_count,
                              in->baby_count, in->giant_count, LINEAR_TRANSFORM_TERMS_MAX,
                              LINEAR_TRANSFORM_STEPS_MAX);
    if ((rc = steps_check(params, in->babies, in->baby_count, true, "babies", err)) != CKKS_OK) return rc;
    rc = steps_check(params, in->giants, in->giant_count, !has_many_results(in), "giants", err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < in->term_count; i++)
        if (in->terms[i].baby >= in->baby_count || in->terms[i].giant >= in->giant_count ||
            !in->terms[i].plain)
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "terms",
                                  "term %u: baby %u of %u, giant %u of %u", i, in->terms[i].baby,
                                  in->baby_count, in->terms[i].giant, in->giant_count);
    return CKKS_OK;
}

/* Numbers the steps that terms use: those that need a key in their order, then the identity. place[count] is
 * UINT32_MAX for a step without a term. */
static void steps_number(uint32_t *place, uint32_t *used_count, uint32_t *switched_count,
                         const galois_step *steps, uint32_t count, const bool *is_used) {
    uint32_t next = 0;
    for (uint32_t i = 0; i < count; i++)
        place[i] = is_used[i] && steps[i].galois_element != 1 ? next++ : UINT32_MAX;
    *switched_count = next;
    for (uint32_t i = 0; i < count; i++)
        if (is_used[i] && steps[i].galois_element == 1) place[i] = next++;
    *used_count = next;
}

static void fill_steps(linear_transform *lt, const transform_input *in, const uint32_t *baby_place,
                       const uint32_t *giant_place) {
    for (uint32_t i = 0; i < in->baby_count; i++) {
        const galois_step s = in->babies[i];
        if (baby_place[i] >= lt->baby_switched) continue;
        lt->baby_items[baby_place[i]] = (key_product_item){0, s.key, s.galois_element, baby_place[i]};
        if (s.key > lt->key_max) lt->key_max = s.key;
    }
    for (uint32_t i = 0; i < in->giant_count; i++) {
        const galois_step s = in->giants[i];
        if (giant_place[i] >= lt->giant_count) continue;
        lt->permutes[giant_place[i]] = (permute_item){giant_place[i], s.galois_element};
        if (giant_place[i] >= lt->giant_switched) continue;
        lt->giant_items[giant_place[i]] = (key_product_item){giant_place[i], s.key, s.galois_element, 0};
        if (s.key > lt->key_max) lt->key_max = s.key;
    }
}

static int compare_diagonals(const void *left, const void *right) {
    const diagonal_item *a = left, *b = right;
    if (a->out != b->out) return a->out < b->out ? -1 : 1;
    return a->in < b->in ? -1 : a->in > b->in;
}

/* Lists on the host. */
static ckks_status fill(linear_transform *lt, const transform_input *in, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    uint32_t *place = calloc((size_t)in->baby_count + in->giant_count + 1, sizeof *place);
    bool *is_used = calloc((size_t)in->baby_count + in->giant_count + 1, sizeof *is_used);
    lt->baby_items = calloc((size_t)in->baby_count + 1, sizeof *lt->baby_items);
    lt->giant_items = calloc((size_t)in->giant_count + 1, sizeof *lt->giant_items);
    lt->permutes = calloc((size_t)in->giant_count + 1, sizeof *lt->permutes);
    lt->diagonals = calloc(in->term_count, sizeof *lt->diagonals);
    if (!place || !is_used || !lt->baby_items || !lt->giant_items || !lt->permutes || !lt->diagonals) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "terms", "no memory for %u terms", in->term_count);
        goto out;
    }
    uint32_t *giant_place = place + in->baby_count;
    for (uint32_t i = 0; i < in->term_count; i++) {
        is_used[in->terms[i].baby] = true;
        is_used[in->baby_count + in->terms[i].giant] = true;
    }
    steps_number(place, &lt->baby_count, &lt->baby_switched, in->babies, in->baby_count, is_used);
    steps_number(giant_place, &lt->giant_count, &lt->giant_switched, in->giants, in->giant_count,
                 is_used + in->baby_count);
    fill_steps(lt, in, place, giant_place);
    for (uint32_t i = 0; i < in->term_count; i++)
        lt->diagonals[i] = (diagonal_item){giant_place[in->terms[i].giant], place[in->terms[i].baby],
                                           (uint64_t)(uintptr_t)in->terms[i].plain};
    qsort(lt->diagonals, in->term_count, sizeof *lt->diagonals, compare_diagonals);
    for (uint32_t i = 1; i < in->term_count && rc == CKKS_OK; i++)
        if (!compare_diagonals(&lt->diagonals[i - 1], &lt->diagonals[i]))
            rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "terms", "two terms of one baby and giant step");
out:
    free(place);
    free(is_used);
    return rc;
}

static ckks_status upload(linear_transform *lt, ckks_error *err) {
    ckks_status rc;
    if ((rc = descriptors_upload(&lt->baby_items_device, lt->dev, lt->baby_items,
                                 lt->baby_switched * sizeof *lt->baby_items, err)) != CKKS_OK)
        return rc;
    if ((rc = descriptors_upload(&lt->giant_items_device, lt->dev, lt->giant_items,
                                 lt->giant_switched * sizeof *lt->giant_items, err)) != CKKS_OK)
        return rc;
    if ((rc = descriptors_upload(&lt->permutes_device, lt->dev, lt->permutes,
                                 lt->giant_count * sizeof *lt->permutes, err)) != CKKS_OK)
        return rc;
    return descriptors_upload(&lt->diagonals_device, lt->dev, lt->diagonals,
                              lt->term_count * sizeof *lt->diagonals, err);
}

ckks_status linear_transform_create(linear_transform **out, device *dev, const ckks_context *context,
                                    uint32_t level, const galois_step *babies, uint32_t baby_count,
                                    const galois_step *giants, uint32_t giant_count,
                                    const linear_transform_term *terms, uint32_t term_count,
                                    bool with_rescale, double plain_scale, ckks_error *err) {
    ckks_status rc;
    linear_transform *lt = NULL;
    const transform_input in = {babies, giants, terms, baby_count, giant_count, term_count};
    if ((rc = input_check(&in, context_params(context), level, with_rescale, err)) != CKKS_OK) goto out;
    lt = calloc(1, sizeof *lt);
    if (!lt) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "terms", "no memory");
        goto out;
    }
    lt->dev = dev;
    lt->level = level;
    lt->with_rescale = with_rescale;
    lt->result_count = has_many_results(&in) ? giant_count : 1;
    lt->plain_scale = plain_scale;
    lt->term_count = term_count;
    if ((rc = fill(lt, &in, err)) != CKKS_OK) goto out;
    if (lt->result_count > 1 && lt->giant_count != giant_count) {
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "terms", "a result of several has no term");
        goto out;
    }
    if ((rc = upload(lt, err)) != CKKS_OK) goto out;
    *out = lt, lt = NULL;
out:
    linear_transform_destroy(lt);
    return rc;
}

/* Sizes in words of one evaluation. */
typedef struct transform_shape {
    const linear_transform *lt;
    const ckks_params *params;
    uint32_t limbs, limbs_qp;
    uint64_t n, pair_words; /* one value over QP */
} transform_shape;

/* U[baby][2][limb of QP][N]: every baby step over QP, times P */
static ckks_status baby_steps(evaluator *ev, uint64_t **steps, const transform_shape *shape,
                              const uint64_t *words, ckks_error *err) {
    ckks_status rc;
    uint64_t *digits = NULL;
    const linear_transform *lt = shape->lt;
    if ((rc = scratch_acquire(ev, steps, lt->baby_count * shape->pair_words, err)) != CKKS_OK) goto out;
    if (lt->baby_switched) {
        rc = launch_mod_up(ev, &digits, words + shape->limbs * shape->n, 0, 1, lt->level, err);
        if (rc != CKKS_OK) goto out;
        const kernel_key_product_args args = {
            .tables = ev->tables,
            .out = *steps,
            .out_count = lt->baby_switched,
            .level = lt->level,
            .digits = digits,
            .digits_count = 1,
            .add = words,
            .add_stride = 2 * shape->limbs,
            .keys = ev->keys,
            .key_count = ev->key_count,
            .items = lt->baby_items_device,
            .items_host = lt->baby_items,
            .item_count = lt->baby_switched,
        };
        if ((rc = device_launch(ev->stream, KERNEL_KEY_PRODUCT, &args, err)) != CKKS_OK) goto out;
    }
    if (lt->baby_count > lt->baby_switched) {
        uint64_t *identity = *steps + lt->baby_switched * shape->pair_words;
        kernel_scalars_args args = {
            .tables = ev->tables,
            .out = {identity, 2, shape->limbs_qp, basis_q(lt->level)},
            .a = {(uint64_t *)(uintptr_t)words, 2, shape->limbs, basis_q(lt->level)},
        };
        uint64_t shoup;
        for (uint32_t j = 0; j < shape->limbs; j++)
            context_p_product(ev->context, j, &args.scalar[j], &shoup);
        if ((rc = device_launch(ev->stream, KERNEL_MULTIPLY_SCALARS, &args, err)) != CKKS_OK) goto out;
        for (uint32_t c = 0; c < 2 && rc == CKKS_OK; c++)
            rc = device_fill(ev->stream, identity + ((uint64_t)c * shape->limbs_qp + shape->limbs) * shape->n,
                             0, shape->params->p_count * shape->n * sizeof(uint64_t), err);
    }
out:
    scratch_release(ev, &digits);
    if (rc != CKKS_OK) scratch_release(ev, steps);
    return rc;
}

/* V[giant][2][limb of QP][N] */
static ckks_status diagonal_sums(evaluator *ev, uint64_t **sums, const transform_shape *shape,
                                 const uint64_t *steps, ckks_error *err) {
    const linear_transform *lt = shape->lt;
    ckks_status rc = scratch_acquire(ev, sums, lt->giant_count * shape->pair_words, err);
    if (rc != CKKS_OK) return rc;
    const kernel_diagonal_sum_args args = {
        .tables = ev->tables,
        .out = *sums,
        .in = steps,
        .out_count = lt->giant_count,
        .in_count = lt->baby_count,
        .component_count = 2,
        .basis = basis_qp(shape->params, lt->level),
        .items = lt->diagonals_device,
        .items_host = lt->diagonals,
        .item_count = lt->term_count,
    };
    rc = device_launch(ev->stream, KERNEL_DIAGONAL_SUM, &args, err);
    if (rc != CKKS_OK) scratch_release(ev, sums);
    return rc;
}

/* acc = the sum over giants of KEY_PRODUCT(mod_up(mod_down(V_g.1)), g) */
static ckks_status giant_products(evaluator *ev, uint64_t *acc, const transform_shape *shape,
                                  const uint64_t *sums, ckks_error *err) {
    ckks_status rc;
    uint64_t *down = NULL, *scratch = NULL;
    const linear_transform *lt = shape->lt;
    const uint64_t component = shape->limbs_qp * shape->n;
    rc = scratch_acquire(ev, &down, (uint64_t)lt->giant_switched * shape->limbs * shape->n, err);
    if (rc != CKKS_OK) goto out;
    kernel_mod_down_args down_args = {
        .out = {down, 1, shape->limbs, basis_q(lt->level)},
        .a = {(uint64_t *)(uintptr_t)sums + component, 1, shape->limbs_qp,
              basis_qp(shape->params, lt->level)},
        .add_galois_element = 1,
        .batch_count = lt->giant_switched,
        .out_batch_stride = shape->limbs,
        .a_batch_stride = 2 * shape->limbs_qp,
    };
    if ((rc = launch_mod_down(ev, &down_args, err)) != CKKS_OK) goto out;
    rc = scratch_acquire(ev, &scratch,
                         switch_product_scratch(shape->params, shape->limbs, lt->giant_switched) * shape->n,
                         err);
    if (rc != CKKS_OK) goto out;
    const kernel_switch_product_args args = {
        .tables = ev->tables,
        .out = acc,
        .a = {down, 1, shape->limbs, basis_q(lt->level)},
        .a_batch_stride = shape->limbs,
        .batch_count = lt->giant_switched,
        .keys = ev->keys,
        .key_count = ev->key_count,
        .items = lt->giant_items_device,
        .items_host = lt->giant_items,
        .is_sum = 1,
        .scratch = scratch,
    };
    rc = device_launch(ev->stream, KERNEL_SWITCH_PRODUCT, &args, err);
out:
    scratch_release(ev, &down);
    scratch_release(ev, &scratch);
    return rc;
}

/* acc.component += the permuted V_g.component of giants first .. first + count - 1 */
static ckks_status giant_add(evaluator *ev, uint64_t *acc, const transform_shape *shape, const uint64_t *sums,
                             uint32_t component, uint32_t first, uint32_t count, ckks_error *err) {
    const linear_transform *lt = shape->lt;
    const uint64_t at = component * shape->limbs_qp * shape->n;
    const kernel_permute_sum_args args = {
        .tables = ev->tables,
        .out = {acc + at, 1, shape->limbs_qp, basis_qp(shape->params, lt->level)},
        .start = acc + at,
        .in = sums + at,
        .in_stride = 2 * shape->limbs_qp,
        .in_count = lt->giant_count,
        .items = (const permute_item *)lt->permutes_device + first,
        .items_host = lt->permutes + first,
        .item_count = count,
    };
    return device_launch(ev->stream, KERNEL_PERMUTE_SUM, &args, err);
}

/* acc[2][limb of QP][N], scratch that the caller releases. Takes `sums` over. */
static ckks_status giant_steps(evaluator *ev, uint64_t **acc, const transform_shape *shape, uint64_t **sums,
                               ckks_error *err) {
    ckks_status rc = CKKS_OK;
    const linear_transform *lt = shape->lt;
    if (!lt->giant_switched) { /* the only giant step is the identity */
        *acc = *sums, *sums = NULL;
        return CKKS_OK;
    }
    if ((rc = scratch_acquire(ev, acc, shape->pair_words, err)) != CKKS_OK) goto out;
    if ((rc = giant_products(ev, *acc, shape, *sums, err)) != CKKS_OK) goto out;
    if ((rc = giant_add(ev, *acc, shape, *sums, 0, 0, lt->giant_count, err)) != CKKS_OK) goto out;
    if (lt->giant_count > lt->giant_switched)
        rc = giant_add(ev, *acc, shape, *sums, 1, lt->giant_switched, 1, err);
out:
    scratch_release(ev, sums);
    if (rc != CKKS_OK) scratch_release(ev, acc);
    return rc;
}

/* sums of diagonals, or of giant steps -> `count` entries of the value, from `entry` on */
static ckks_status close_entries(evaluator *ev, const ckks_value *out, const transform_shape *shape,
                                 uint64_t *acc, uint32_t entry, uint32_t count, ckks_error *err) {
    const linear_transform *lt = shape->lt;
    kernel_mod_down_args down = {
        .out = value_entry(out, entry, value_level(out), (uint32_t)shape->n),
        .a = {acc, 2, shape->limbs_qp, basis_qp(shape->params, lt->level)},
        .add_galois_element = 1,
        .batch_count = count,
        .out_batch_stride = value_stride(out),
        .a_batch_stride = 2 * shape->limbs_qp,
        .with_rescale = lt->with_rescale,
    };
    return launch_mod_down(ev, &down, err);
}

static ckks_status transform_entry(evaluator *ev, const ckks_value *out, uint32_t out_count,
                                   const transform_shape *shape, const ckks_value *a, uint32_t entry,
                                   ckks_error *err) {
    ckks_status rc;
    uint64_t *steps = NULL, *sums = NULL, *acc = NULL;
    const linear_transform *lt = shape->lt;
    const uint64_t *words = a->words + (uint64_t)entry * value_stride(a) * shape->n;
    if ((rc = baby_steps(ev, &steps, shape, words, err)) != CKKS_OK) goto out;
    if ((rc = diagonal_sums(ev, &sums, shape, steps, err)) != CKKS_OK) goto out;
    scratch_release(ev, &steps);
    if (lt->result_count > 1) {
        if (out_count == 1) rc = close_entries(ev, out, shape, sums, 0, lt->result_count, err);
        for (uint32_t k = 0; k < lt->result_count && out_count > 1 && rc == CKKS_OK; k++)
            rc = close_entries(ev, &out[k], shape, sums + k * shape->pair_words, entry, 1, err);
        goto out;
    }
    if ((rc = giant_steps(ev, &acc, shape, &sums, err)) != CKKS_OK) goto out;
    rc = close_entries(ev, out, shape, acc, entry, 1, err);
out:
    scratch_release(ev, &steps);
    scratch_release(ev, &sums);
    scratch_release(ev, &acc);
    return rc;
}

ckks_status evaluator_linear_transform_many(evaluator *ev, ckks_value *out, uint32_t out_count,
                                            const linear_transform *lt, const ckks_value *a,
                                            ckks_error *err) {
    ckks_status rc;
    const ckks_params *params = evaluator_params(ev);
    memset(out, 0, out_count * sizeof *out);
    if ((rc = value_check(ev, a, VALUE_CIPHERTEXT, 2, err)) != CKKS_OK) return rc;
    const bool is_batch = out_count == 1 && lt->result_count > 1;
    if (!is_batch && out_count != lt->result_count)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "out_count", "%u results, the transform has %u",
                              out_count, lt->result_count);
    if (is_batch && a->signature.batch_count != 1)
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "batch_count",
                              "a batch of results is made from one value, this is a batch of %u",
                              a->signature.batch_count);
    if (value_level(a) != lt->level)
        return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "limb_count",
                              "the transform is made for level %u, the value is at level %u", lt->level,
                              value_level(a));
    if (lt->baby_switched + lt->giant_switched && (rc = key_check(ev, lt->key_max, "steps", err)) != CKKS_OK)
        return rc;
    const uint32_t limbs = lt->level + 1, limbs_qp = limbs + params->p_count;
    const transform_shape shape = {lt,       params,           limbs,
                                   limbs_qp, params_n(params), 2 * (uint64_t)limbs_qp * params_n(params)};
    double scale = a->signature.scale * lt->plain_scale;
    if (lt->with_rescale) scale = scale_rescaled(params, scale, lt->level);
    for (uint32_t k = 0; k < out_count && rc == CKKS_OK; k++)
        rc = value_acquire(ev, &out[k], 2, is_batch ? lt->result_count : a->signature.batch_count,
                           lt->level - (lt->with_rescale ? 1 : 0), scale, err);
    for (uint32_t i = 0; i < a->signature.batch_count && rc == CKKS_OK; i++)
        rc = transform_entry(ev, out, out_count, &shape, a, i, err);
    for (uint32_t k = 0; k < out_count && rc != CKKS_OK; k++) evaluator_release(ev, &out[k]);
    return rc;
}

ckks_status evaluator_linear_transform(evaluator *ev, ckks_value *out, const linear_transform *lt,
                                       const ckks_value *a, ckks_error *err) {
    return evaluator_linear_transform_many(ev, out, 1, lt, a, err);
}
