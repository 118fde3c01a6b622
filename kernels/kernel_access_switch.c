/* What the kernels of key switching touch (kernel_access.c). */
#include "kernels/kernel_access_internal.h"

ckks_status access_describe_mod_up(describer *d, const kernel_mod_up_args *a) {
    range out = {0}, in = {0}, scratch = {0};
    TRY(access_check_poly(d, "a", &a->a));
    TRY(access_check_level_basis(d, "a", a->a.basis, false));
    if (a->a.component_count != 1) INVALID("a", "component_count %u is not 1", a->a.component_count);
    TRY(access_check_batch(d, a->batch_count));
    const uint32_t limbs = a->a.basis.q_count;
    const uint64_t digit_count = params_digit_count(d->params, limbs - 1);
    TRY(access_touch_words(d, &out, "out", a->out,
                           a->batch_count * digit_count * (limbs + d->params->p_count), true));
    TRY(access_touch_batch(d, &in, "a", &a->a, a->batch_count, a->a_batch_stride, false));
    TRY(access_touch_words(d, &scratch, "scratch", a->scratch, (uint64_t)a->batch_count * limbs, true));
    TRY(access_check_disjoint(d, "a", out, in));
    TRY(access_check_disjoint(d, "scratch", out, scratch));
    return access_check_disjoint(d, "scratch", scratch, in);
}

static ckks_status check_key_items(const describer *d, const kernel_key_product_args *a) {
    if (!a->items != !a->items_host) INVALID("items", "device and host lists must come together");
    if (!a->items) {
        if (a->item_count != a->out_count || a->item_count != a->digits_count)
            INVALID("item_count", "without a list, items, outputs and digits must be equally many");
        if (a->uniform.key >= a->key_count) INVALID("uniform", "key %u of %u", a->uniform.key, a->key_count);
        return access_check_galois(d, "uniform", a->uniform.galois_element);
    }
    for (uint32_t i = 0; i < a->item_count; i++) {
        const key_product_item *item = &a->items_host[i];
        if (item->digits >= a->digits_count || item->key >= a->key_count || item->out_index >= a->out_count)
            INVALID("items", "item %u names digits %u, key %u, out %u beyond what there is", i, item->digits,
                    item->key, item->out_index);
        TRY(access_check_galois(d, "items", item->galois_element));
    }
    return CKKS_OK;
}

ckks_status access_describe_key_product(describer *d, const kernel_key_product_args *a) {
    range out = {0}, digits = {0}, add = {0};
    if (a->level >= d->params->q_count) INVALID("level", "%u is above the parameters' highest", a->level);
    if (a->out_count == 0 || a->out_count > ACCESS_BATCH_MAX)
        INVALID("out_count", "%u is not in range", a->out_count);
    if (a->digits_count == 0 || a->digits_count > ACCESS_BATCH_MAX)
        INVALID("digits_count", "%u is not in range", a->digits_count);
    if (!a->keys) INVALID("keys", "is NULL");
    if (a->item_count == 0) INVALID("item_count", "is 0");
    if (a->is_public && a->add) INVALID("add", "does not go with a public key");
    TRY(check_key_items(d, a));
    const uint64_t q_limbs = a->level + 1, limbs = a->is_public ? q_limbs : q_limbs + d->params->p_count;
    const uint64_t digit_count = a->is_public ? 1 : params_digit_count(d->params, a->level);
    TRY(access_touch_words(d, &out, "out", a->out, a->out_count * 2 * limbs, true));
    TRY(access_touch_words(d, &digits, "digits", a->digits, a->digits_count * digit_count * limbs, false));
    if (a->add) {
        if ((a->digits_count > 1 && a->add_stride < q_limbs) || a->add_stride > ACCESS_STRIDE_LIMBS_MAX)
            INVALID("add_stride", "%u is below one entry (%llu limbs) or too large", a->add_stride,
                    (unsigned long long)q_limbs);
        TRY(access_touch_words(d, &add, "add", a->add,
                               (uint64_t)(a->digits_count - 1) * a->add_stride + q_limbs, false));
        TRY(access_check_disjoint(d, "add", out, add));
    }
    return access_check_disjoint(d, "digits", out, digits);
}

/* what SWITCH_PRODUCT and KEY_SWITCH read through */
static ckks_status check_key(const describer *d, const char *field, uint32_t key, uint32_t key_count) {
    if (key >= key_count) INVALID(field, "key %u of %u", key, key_count);
    return CKKS_OK;
}
static ckks_status check_switch_items(const describer *d, const kernel_switch_product_args *a) {
    if (!a->items != !a->items_host) INVALID("items", "device and host lists must come together");
    if (!a->items) {
        if (a->is_sum) INVALID("is_sum", "a sum takes a list");
        TRY(check_key(d, "uniform", a->uniform.key, a->key_count));
        return access_check_galois(d, "uniform", a->uniform.galois_element);
    }
    for (uint32_t i = 0; i < a->batch_count; i++) {
        const key_product_item *item = &a->items_host[i];
        if (item->digits != i || item->out_index != (a->is_sum ? 0 : i))
            INVALID("items", "item %u names digits %u, out %u: not in order", i, item->digits,
                    item->out_index);
        TRY(check_key(d, "items", item->key, a->key_count));
        TRY(access_check_galois(d, "items", item->galois_element));
    }
    return CKKS_OK;
}

ckks_status access_describe_switch_product(describer *d, const kernel_switch_product_args *a) {
    range out = {0}, in = {0}, scratch = {0};
    TRY(access_check_poly(d, "a", &a->a));
    TRY(access_check_level_basis(d, "a", a->a.basis, false));
    if (a->a.component_count != 1) INVALID("a", "component_count %u is not 1", a->a.component_count);
    TRY(access_check_batch(d, a->batch_count));
    if (!a->keys) INVALID("keys", "is NULL");
    TRY(check_switch_items(d, a));
    const uint32_t q_limbs = a->a.basis.q_count;
    const uint64_t out_count = a->is_sum ? 1 : a->batch_count;
    TRY(access_touch_words(d, &out, "out", a->out, out_count * 2 * (q_limbs + d->params->p_count), true));
    TRY(access_touch_batch(d, &in, "a", &a->a, a->batch_count, a->a_batch_stride, false));
    TRY(access_touch_words(d, &scratch, "scratch", a->scratch,
                           switch_product_scratch(d->params, q_limbs, a->batch_count), true));
    TRY(access_check_disjoint(d, "a", out, in));
    TRY(access_check_disjoint(d, "scratch", out, scratch));
    return access_check_disjoint(d, "scratch", scratch, in);
}

ckks_status access_describe_key_switch(describer *d, const kernel_key_switch_args *a) {
    range out = {0}, in = {0}, add = {0}, scratch = {0};
    TRY(access_check_poly(d, "a", &a->a));
    TRY(access_check_level_basis(d, "a", a->a.basis, false));
    if (a->a.component_count != 1) INVALID("a", "component_count %u is not 1", a->a.component_count);
    TRY(access_check_poly(d, "out", &a->out));
    TRY(access_check_level_basis(d, "out", a->out.basis, false));
    TRY(access_check_batch(d, a->batch_count));
    if (!a->keys) INVALID("keys", "is NULL");
    TRY(check_key(d, "key", a->key, a->key_count));
    TRY(access_check_galois(d, "galois_element", a->galois_element));
    const uint32_t q_limbs = a->a.basis.q_count, dropped = a->with_rescale ? 1 : 0;
    if (q_limbs <= dropped) INVALID("with_rescale", "there is no prime to drop at level 0");
    if (a->out.basis.q_count != q_limbs - dropped)
        INVALID("out", "%u limbs are not %u", a->out.basis.q_count, q_limbs - dropped);
    if (a->out.component_count != 2) INVALID("out", "component_count %u is not 2", a->out.component_count);
    TRY(access_touch_batch(d, &out, "out", &a->out, a->batch_count, a->out_batch_stride, true));
    TRY(access_touch_batch(d, &in, "a", &a->a, a->batch_count, a->a_batch_stride, false));
    if (a->add.words) {
        TRY(access_check_poly(d, "add", &a->add));
        TRY(access_check_level_basis(d, "add", a->add.basis, false));
        if (a->add.basis.q_count != q_limbs || a->add.component_count > 2)
            INVALID("add", "%u limbs, %u components do not fit the input", a->add.basis.q_count,
                    a->add.component_count);
        TRY(access_touch_batch(d, &add, "add", &a->add, a->batch_count, a->add_batch_stride, false));
        TRY(access_check_disjoint(d, "add", out, add));
    }
    TRY(access_touch_words(d, &scratch, "scratch", a->scratch,
                           key_switch_scratch(d->params, q_limbs, a->batch_count), true));
    TRY(access_check_disjoint(d, "a", out, in));
    TRY(access_check_disjoint(d, "scratch", out, scratch));
    TRY(access_check_disjoint(d, "scratch", scratch, add));
    return access_check_disjoint(d, "scratch", scratch, in);
}

ckks_status access_describe_hoisted_switch(describer *d, const kernel_hoisted_switch_args *a) {
    range out = {0}, in = {0}, add = {0}, scratch = {0};
    const uint32_t q_limbs = a->a.basis.q_count;
    TRY(access_touch_poly(d, &in, "a", &a->a, false));
    TRY(access_check_level_basis(d, "a", a->a.basis, false));
    TRY(access_check_poly(d, "out", &a->out));
    TRY(access_check_level_basis(d, "out", a->out.basis, false));
    if (a->a.component_count != 1) INVALID("a", "component_count %u is not 1", a->a.component_count);
    if (a->out.component_count != 2 || a->out.basis.q_count != q_limbs)
        INVALID("out", "%u components of %u limbs", a->out.component_count, a->out.basis.q_count);
    if (!a->out_count || a->out_count > ACCESS_BATCH_MAX)
        INVALID("out_count", "%u is not in range", a->out_count);
    if (!a->keys || !a->items || !a->items_host) INVALID(a->keys ? "items" : "keys", "is NULL");
    const kernel_key_product_args product = {
        NULL,     NULL,          a->out_count,  0,   NULL, 1, NULL, 0, a->keys, a->key_count,
        a->items, a->items_host, a->item_count, {0}, 0};
    TRY(check_key_items(d, &product));
    for (uint32_t t = 0, i; t < a->out_count; t++) {
        for (i = 0; i < a->item_count && a->items_host[i].out_index != t;) i++;
        if (i == a->item_count) INVALID("items", "none names out %u", t);
    }
    TRY(access_touch_batch(d, &out, "out", &a->out, a->out_count, a->out_batch_stride, true));
    if (a->add.words) {
        TRY(access_touch_poly(d, &add, "add", &a->add, false));
        TRY(access_check_level_basis(d, "add", a->add.basis, false));
        if (a->add.component_count != 1 || a->add.basis.q_count != q_limbs)
            INVALID("add", "does not fit the input");
        TRY(access_check_disjoint(d, "add", out, add));
    }
    TRY(access_touch_words(d, &scratch, "scratch", a->scratch,
                           hoisted_switch_scratch(d->params, q_limbs, a->out_count), true));
    TRY(access_check_disjoint(d, "a", out, in));
    TRY(access_check_disjoint(d, "scratch", scratch, out));
    TRY(access_check_disjoint(d, "scratch", scratch, add));
    return access_check_disjoint(d, "scratch", scratch, in);
}

ckks_status access_describe_mod_down(describer *d, const kernel_mod_down_args *a) {
    range out = {0}, in = {0}, add = {0}, scratch = {0};
    TRY(access_check_poly(d, "a", &a->a));
    TRY(access_check_level_basis(d, "a", a->a.basis, true));
    TRY(access_check_poly(d, "out", &a->out));
    TRY(access_check_level_basis(d, "out", a->out.basis, false));
    TRY(access_check_batch(d, a->batch_count));
    const uint32_t limbs = a->a.basis.q_count, dropped = a->with_rescale ? 1 : 0;
    if (limbs <= dropped) INVALID("with_rescale", "there is no prime to drop at level 0");
    if (a->out.basis.q_count != limbs - dropped)
        INVALID("out", "%u limbs are not %u", a->out.basis.q_count, limbs - dropped);
    if (a->out.component_count != a->a.component_count)
        INVALID("out", "component_count %u differs from the input's %u", a->out.component_count,
                a->a.component_count);
    TRY(access_touch_batch(d, &out, "out", &a->out, a->batch_count, a->out_batch_stride, true));
    TRY(access_touch_batch(d, &in, "a", &a->a, a->batch_count, a->a_batch_stride, false));
    if (a->add.words) {
        TRY(access_check_poly(d, "add", &a->add));
        TRY(access_check_level_basis(d, "add", a->add.basis, false));
        if (a->add.basis.q_count != limbs || a->add.component_count > a->a.component_count)
            INVALID("add", "%u limbs, %u components do not fit the input", a->add.basis.q_count,
                    a->add.component_count);
        TRY(access_check_galois(d, "add_galois_element", a->add_galois_element));
        TRY(access_touch_batch(d, &add, "add", &a->add, a->batch_count, a->add_batch_stride, false));
        TRY(access_check_disjoint(d, "add", out, add));
    }
    const uint64_t scratch_limbs =
        (uint64_t)a->batch_count * a->a.component_count * (d->params->p_count + 2ull * limbs);
    TRY(access_touch_words(d, &scratch, "scratch", a->scratch, scratch_limbs, true));
    TRY(access_check_disjoint(d, "a", out, in));
    TRY(access_check_disjoint(d, "scratch", out, scratch));
    TRY(access_check_disjoint(d, "scratch", scratch, add));
    return access_check_disjoint(d, "scratch", scratch, in);
}
