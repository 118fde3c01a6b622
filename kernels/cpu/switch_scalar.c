/*
 * SWITCH_PRODUCT and KEY_SWITCH in plain C: the kernels that they are defined by, one after the other. Digits
 * and products pass through scratch. The vector versions (switch_lanes.h) go limb by limb.
 */
#include "kernels/cpu/kernels_cpu.h"

static const ckks_params *params_of(const device_tables *tables) {
    return context_params(device_tables_context(tables));
}

static void switch_product(const kernel_switch_product_args *args) {
    const ckks_params *params = params_of(args->tables);
    const uint32_t n = params_n(params), q_limbs = args->a.basis.q_count;
    uint64_t *digits = args->scratch + (size_t)args->batch_count * q_limbs * n;
    const kernel_mod_up_args up = {
        args->tables, digits, args->a, args->a_batch_stride, args->batch_count, args->scratch,
    };
    cpu_mod_up_scalar(&up);
    const kernel_key_product_args product = {
        .tables = args->tables,
        .out = args->out,
        .out_count = args->is_sum ? 1 : args->batch_count,
        .level = q_limbs - 1,
        .digits = digits,
        .digits_count = args->batch_count,
        .keys = args->keys,
        .key_count = args->key_count,
        .items = args->items,
        .items_host = args->items_host,
        .item_count = args->batch_count,
        .uniform = args->uniform,
    };
    cpu_key_product_scalar(&product);
}

static void key_switch(const kernel_key_switch_args *args) {
    const ckks_params *params = params_of(args->tables);
    const uint32_t n = params_n(params), q_limbs = args->a.basis.q_count, limbs = q_limbs + params->p_count;
    uint64_t *product = args->scratch + switch_product_scratch(params, q_limbs, args->batch_count) * n;
    const kernel_switch_product_args up = {
        .tables = args->tables,
        .out = product,
        .a = args->a,
        .a_batch_stride = args->a_batch_stride,
        .batch_count = args->batch_count,
        .keys = args->keys,
        .key_count = args->key_count,
        .uniform = {.key = args->key, .galois_element = args->galois_element},
        .scratch = args->scratch,
    };
    switch_product(&up);
    /* the digits' memory is free now, and warm */
    const uint64_t down_limbs = 2ull * args->batch_count * (params->p_count + 2 * q_limbs);
    const bool fits = down_limbs <= switch_product_scratch(params, q_limbs, args->batch_count);
    const kernel_mod_down_args down = {
        .tables = args->tables,
        .out = args->out,
        .a = {product, 2, limbs, {0, q_limbs, params->p_count}},
        .add = args->add,
        .add_galois_element = args->galois_element,
        .batch_count = args->batch_count,
        .out_batch_stride = args->out_batch_stride,
        .a_batch_stride = 2 * limbs,
        .add_batch_stride = args->add_batch_stride,
        .with_rescale = args->with_rescale,
        .scratch = fits ? args->scratch : product + (size_t)2 * args->batch_count * limbs * n,
    };
    cpu_mod_down_scalar(&down);
}

static void hoisted_switch(const kernel_hoisted_switch_args *args) {
    const ckks_params *params = params_of(args->tables);
    const uint32_t n = params_n(params), q_limbs = args->a.basis.q_count, limbs = q_limbs + params->p_count;
    uint64_t *digits = args->scratch + (size_t)q_limbs * n;
    uint64_t *product = args->scratch + switch_product_scratch(params, q_limbs, 1) * n;
    const kernel_mod_up_args up = {args->tables, digits, args->a, 0, 1, args->scratch};
    cpu_mod_up_scalar(&up);
    const kernel_key_product_args products = {
        .tables = args->tables,
        .out = product,
        .out_count = args->out_count,
        .level = q_limbs - 1,
        .digits = digits,
        .digits_count = 1,
        .add = args->add.words,
        .keys = args->keys,
        .key_count = args->key_count,
        .items = args->items,
        .items_host = args->items_host,
        .item_count = args->item_count,
    };
    cpu_key_product_scalar(&products);
    const kernel_mod_down_args down = {
        .tables = args->tables,
        .out = args->out,
        .a = {product, 2, limbs, {0, q_limbs, params->p_count}},
        .add_galois_element = 1,
        .batch_count = args->out_count,
        .out_batch_stride = args->out_batch_stride,
        .a_batch_stride = 2 * limbs,
        .scratch = product + (size_t)2 * args->out_count * limbs * n,
    };
    cpu_mod_down_scalar(&down);
}

void cpu_switch_product_scalar(const void *arguments) {
    switch_product(arguments);
}
void cpu_hoisted_switch_scalar(const void *arguments) {
    hoisted_switch(arguments);
}
void cpu_key_switch_scalar(const void *arguments) {
    key_switch(arguments);
}
