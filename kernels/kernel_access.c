/*
 * What a launch touches, and whether its shapes make sense. One function per argument struct: it validates,
 * then lists. The lists feed three readers: the recorder (races between unordered nodes), the workspace
 * planner (which buffers may share memory) and the front end (is this memory of this device?). So a list that
 * is too short is a bug that shows as corruption, one that is too long costs memory only: where components
 * leave gaps and are many, the whole span is listed.
 *
 * Operands may have more limbs than the output, as long as they have its primes: limbs meet by prime.
 */
#include "kernels/kernel_access_internal.h"

#define COMPONENTS_MAX 3u /* of one ciphertext */

static const char *const name[KERNEL_COUNT] = {
#define X(id, type) [id] = &#id[sizeof "KERNEL_" - 1],
    KERNEL_TABLE(X)
#undef X
};
static const size_t arguments_size[KERNEL_COUNT] = {
#define X(id, type) [id] = sizeof(type),
    KERNEL_TABLE(X)
#undef X
};

const char *kernel_name(kernel_id kernel) {
    return (unsigned)kernel < KERNEL_COUNT ? name[kernel] : "unknown";
}
size_t kernel_arguments_size(kernel_id kernel) {
    return (unsigned)kernel < KERNEL_COUNT ? arguments_size[kernel] : 0;
}

/* n ciphertexts of two components make n of three, which then lie elsewhere than where they were read */
static ckks_status check_tensor(const describer *d, const kernel_poly *out, const kernel_poly *in,
                                const char *field) {
    if (in->component_count % 2) INVALID(field, "component_count %u is odd", in->component_count);
    if (out->component_count != in->component_count / 2 * 3)
        INVALID("out", "component_count %u is not %u", out->component_count, in->component_count / 2 * 3);
    return CKKS_OK;
}

static ckks_status describe_unary(describer *d, const kernel_unary_args *a) {
    range out = {0}, in = {0};
    TRY(access_touch_poly(d, &out, "out", &a->out, true));
    TRY(access_touch_poly(d, &in, "a", &a->a, false));
    TRY(access_check_contains(d, "a", &a->a, &a->out));
    if (d->kernel == KERNEL_SQUARE) {
        TRY(check_tensor(d, &a->out, &a->a, "a"));
        if (a->a.component_count > 2) return access_check_disjoint(d, "a", out, in);
    } else if (a->out.component_count != a->a.component_count) {
        INVALID("out", "component_count %u differs from the input's %u", a->out.component_count,
                a->a.component_count);
    }
    return access_check_in_place(d, "a", &a->out, out, &a->a, in);
}

static ckks_status describe_binary(describer *d, const kernel_binary_args *a) {
    range out = {0}, in_a = {0}, in_b = {0};
    TRY(access_touch_poly(d, &out, "out", &a->out, true));
    TRY(access_touch_poly(d, &in_a, "a", &a->a, false));
    TRY(access_touch_poly(d, &in_b, "b", &a->b, false));
    TRY(access_check_contains(d, "a", &a->a, &a->out));
    TRY(access_check_contains(d, "b", &a->b, &a->out));
    const uint32_t ca = a->a.component_count, cb = a->b.component_count;
    uint32_t expected = ca;
    if (d->kernel == KERNEL_ADD || d->kernel == KERNEL_SUBTRACT) {
        expected = ca > cb ? ca : cb;
    } else if (d->kernel == KERNEL_MULTIPLY) {
        if (cb != ca) INVALID("b", "component_count %u is not %u", cb, ca);
        TRY(check_tensor(d, &a->out, &a->a, "a"));
        if (ca > 2) {
            TRY(access_check_disjoint(d, "a", out, in_a));
            return access_check_disjoint(d, "b", out, in_b);
        }
        expected = 3;
    } else if (cb != 1) {
        INVALID("b", "a plaintext has 1 component, not %u", cb);
    }
    if (a->out.component_count != expected)
        INVALID("out", "component_count %u is not %u", a->out.component_count, expected);
    TRY(access_check_in_place(d, "a", &a->out, out, &a->a, in_a));
    /* a plaintext is read for every component, so writing over it would change the later ones */
    if (d->kernel == KERNEL_MULTIPLY_PLAIN && ca > 1) return access_check_disjoint(d, "b", out, in_b);
    return access_check_in_place(d, "b", &a->out, out, &a->b, in_b);
}

static ckks_status describe_scalars(describer *d, const kernel_scalars_args *a) {
    range out = {0}, in = {0};
    TRY(access_touch_poly(d, &out, "out", &a->out, true));
    TRY(access_touch_poly(d, &in, "a", &a->a, false));
    TRY(access_check_contains(d, "a", &a->a, &a->out));
    if (a->out.component_count != a->a.component_count)
        INVALID("out", "component_count %u differs from the input's %u", a->out.component_count,
                a->a.component_count);
    if (a->every && a->out.component_count % a->every != 0)
        INVALID("every", "%u components are no multiple of %u", a->out.component_count, a->every);
    for (uint32_t i = 0; i < basis_limb_count(a->out.basis); i++)
        if (a->scalar[i] >= d->params->prime[basis_prime(a->out.basis, i, d->params->q_count)])
            INVALID("scalar", "entry %u is not below its prime", i);
    return access_check_in_place(d, "a", &a->out, out, &a->a, in);
}

static ckks_status describe_automorphism(describer *d, const kernel_automorphism_args *a) {
    range out = {0}, in = {0};
    TRY(access_touch_poly(d, &out, "out", &a->out, true));
    TRY(access_touch_poly(d, &in, "a", &a->a, false));
    TRY(access_check_contains(d, "a", &a->a, &a->out));
    if (a->out.component_count != a->a.component_count)
        INVALID("out", "component_count %u differs from the input's %u", a->out.component_count,
                a->a.component_count);
    TRY(access_check_galois(d, "galois_element", a->galois_element));
    return access_check_disjoint(d, "a", out, in);
}

/* b: NULL, or what a is multiplied by first */
static ckks_status describe_division(describer *d, const kernel_poly *out, const kernel_poly *a,
                                     const kernel_poly *b, const uint64_t *scratch, uint64_t scratch_limbs) {
    range to = {0}, in = {0}, plain = {0}, work = {0};
    TRY(access_touch_poly(d, &to, "out", out, true));
    TRY(access_touch_poly(d, &in, "a", a, false));
    TRY(access_check_level_basis(d, "a", a->basis, false));
    TRY(access_check_level_basis(d, "out", out->basis, false));
    const uint32_t limbs = a->basis.q_count;
    if (limbs < 2) INVALID("a", "there is no prime to drop at level 0");
    if (out->basis.q_count != limbs - 1) INVALID("out", "%u limbs are not %u", out->basis.q_count, limbs - 1);
    if (out->component_count != a->component_count)
        INVALID("out", "component_count %u differs from the input's %u", out->component_count,
                a->component_count);
    if (b) {
        TRY(access_touch_poly(d, &plain, "b", b, false));
        TRY(access_check_level_basis(d, "b", b->basis, false));
        if (b->component_count != 1 || b->basis.q_count != limbs)
            INVALID("b", "%u components, %u limbs are not 1, %u", b->component_count, b->basis.q_count,
                    limbs);
    }
    TRY(access_touch_words(d, &work, "scratch", scratch, scratch_limbs, true));
    TRY(access_check_disjoint(d, "a", to, in));
    TRY(access_check_disjoint(d, "b", to, plain));
    TRY(access_check_disjoint(d, "scratch", to, work));
    TRY(access_check_disjoint(d, "scratch", work, plain));
    return access_check_disjoint(d, "scratch", work, in);
}

static ckks_status check_count(const describer *d, const char *field, uint32_t count, uint32_t count_max) {
    if (count == 0 || count > count_max) INVALID(field, "%u is not in 1..%u", count, count_max);
    return CKKS_OK;
}

static ckks_status describe_diagonal_sum(describer *d, const kernel_diagonal_sum_args *a) {
    range out = {0}, in = {0};
    TRY(access_check_basis(d, "basis", a->basis));
    TRY(check_count(d, "out_count", a->out_count, ACCESS_COMPONENTS_MAX));
    TRY(check_count(d, "in_count", a->in_count, ACCESS_COMPONENTS_MAX));
    TRY(check_count(d, "component_count", a->component_count, COMPONENTS_MAX));
    if (!a->items || !a->items_host) INVALID("items", "is NULL");
    if (a->item_count == 0) INVALID("item_count", "is 0");
    uint32_t previous = 0;
    for (uint32_t i = 0; i < a->item_count; i++) {
        const diagonal_item *item = &a->items_host[i];
        if (item->out >= a->out_count || item->in >= a->in_count)
            INVALID("items", "item %u names out %u, in %u beyond what there is", i, item->out, item->in);
        if (item->plain == 0 || item->plain % ACCESS_ALIGNMENT)
            INVALID("items", "item %u has no aligned plaintext", i);
        if (item->out < previous) INVALID("items", "item %u is out of order", i);
        previous = item->out;
    }
    const uint64_t entry = (uint64_t)a->component_count * basis_limb_count(a->basis);
    TRY(access_touch_words(d, &out, "out", a->out, a->out_count * entry, true));
    TRY(access_touch_words(d, &in, "in", a->in, a->in_count * entry, false));
    return access_check_disjoint(d, "in", out, in);
}

static ckks_status describe_permute_sum(describer *d, const kernel_permute_sum_args *a) {
    range out = {0}, in = {0}, start = {0};
    TRY(access_touch_poly(d, &out, "out", &a->out, true));
    if (a->out.component_count != 1) INVALID("out", "component_count %u is not 1", a->out.component_count);
    TRY(check_count(d, "in_count", a->in_count, ACCESS_COMPONENTS_MAX));
    if (!a->items || !a->items_host) INVALID("items", "is NULL");
    const uint32_t limbs = basis_limb_count(a->out.basis);
    if ((a->in_count > 1 && a->in_stride < limbs) || a->in_stride > ACCESS_STRIDE_LIMBS_MAX)
        INVALID("in_stride", "%u is below one entry (%u limbs) or too large", a->in_stride, limbs);
    for (uint32_t i = 0; i < a->item_count; i++) {
        if (a->items_host[i].in >= a->in_count)
            INVALID("items", "item %u names entry %u of %u", i, a->items_host[i].in, a->in_count);
        TRY(access_check_galois(d, "items", a->items_host[i].galois_element));
    }
    TRY(access_touch_words(d, &in, "in", a->in, (uint64_t)(a->in_count - 1) * a->in_stride + limbs, false));
    if (a->start) {
        TRY(access_touch_words(d, &start, "start", a->start, limbs, false));
        if (a->start != a->out.words) TRY(access_check_disjoint(d, "start", out, start));
    }
    return access_check_disjoint(d, "in", out, in);
}

static ckks_status describe_matrix_product(describer *d, const kernel_matrix_product_args *a) {
    range out = {0}, in = {0};
    TRY(access_check_basis(d, "basis", a->basis));
    TRY(check_count(d, "row_count", a->row_count, ACCESS_COMPONENTS_MAX));
    TRY(check_count(d, "column_count", a->column_count, ACCESS_COMPONENTS_MAX));
    TRY(check_count(d, "component_count", a->component_count, COMPONENTS_MAX));
    TRY(access_check_address(d, "weight", a->weight, ACCESS_ALIGNMENT));
    if (a->bias) TRY(access_check_address(d, "bias", a->bias, sizeof *a->bias));
    const uint64_t entry = (uint64_t)a->component_count * basis_limb_count(a->basis);
    TRY(access_touch_words(d, &out, "out", a->out, a->row_count * entry, true));
    TRY(access_touch_words(d, &in, "in", a->in, a->column_count * entry, false));
    return access_check_disjoint(d, "in", out, in);
}

/* bytes of all limbs of a packed polynomial */
static uint64_t packed_bytes(const describer *d, const kernel_poly *a) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < basis_limb_count(a->basis); i++) {
        const uint64_t prime = d->params->prime[basis_prime(a->basis, i, d->params->q_count)];
        const uint64_t bits = 64u - (uint32_t)__builtin_clzll(prime);
        bytes += (d->n * bits / 8 + 15) & ~15ull;
    }
    return bytes * a->component_count;
}
static ckks_status touch_packed(describer *d, range *r, const uint8_t *packed, uint64_t bytes,
                                const kernel_poly *poly, bool is_write) {
    TRY(access_check_address(d, "packed", packed, 16));
    const uint64_t expected = packed_bytes(d, poly);
    if (bytes != expected)
        INVALID("packed_bytes", "%llu is not %llu", (unsigned long long)bytes, (unsigned long long)expected);
    return access_touch(d, r, "packed", packed, bytes, is_write);
}
static ckks_status touch_verdict(describer *d, uint32_t *verdict) {
    TRY(access_check_address(d, "verdict", verdict, sizeof *verdict));
    return access_touch(d, NULL, "verdict", verdict, sizeof *verdict, true);
}

static ckks_status describe_unpack(describer *d, const kernel_unpack_args *a) {
    range out = {0}, packed = {0};
    TRY(access_touch_poly(d, &out, "out", &a->out, true));
    TRY(touch_packed(d, &packed, a->packed, a->packed_bytes, &a->out, false));
    TRY(access_check_disjoint(d, "packed", out, packed));
    return touch_verdict(d, a->verdict);
}

static ckks_status describe_narrow_key(describer *d, const kernel_narrow_key_args *a) {
    TRY(access_touch_poly(d, NULL, "key", &a->key, false));
    return access_touch_poly(d, NULL, "key", &a->key, true);
}

static ckks_status describe_pack(describer *d, const kernel_pack_args *a) {
    range out = {0}, in = {0};
    TRY(access_touch_poly(d, &in, "a", &a->a, false));
    TRY(touch_packed(d, &out, a->packed, a->packed_bytes, &a->a, true));
    return access_check_disjoint(d, "a", out, in);
}

static ckks_status describe_expand(describer *d, const kernel_expand_args *a) {
    range out = {0}, seed = {0};
    TRY(access_touch_poly(d, &out, "out", &a->out, true));
    TRY(access_check_address(d, "seed", a->seed, 4));
    TRY(access_touch(d, &seed, "seed", a->seed, 32, false));
    return access_check_disjoint(d, "seed", out, seed);
}

static ckks_status describe_check_nonzero(describer *d, const kernel_check_nonzero_args *a) {
    TRY(access_touch_poly(d, NULL, "a", &a->a, false));
    if (a->a.component_count != 1) INVALID("a", "component_count %u is not 1", a->a.component_count);
    return touch_verdict(d, a->verdict);
}

static ckks_status describe_sample(describer *d, const kernel_sample_args *a) {
    range out = {0}, random = {0};
    TRY(access_touch_poly(d, &out, "out", &a->out, true));
    if (a->out.component_count != 1) INVALID("out", "component_count %u is not 1", a->out.component_count);
    if (a->kind != SAMPLE_TERNARY && a->kind != SAMPLE_ERROR && a->kind != SAMPLE_FLOOD)
        INVALID("kind", "%u is unknown", a->kind);
    if (a->kind == SAMPLE_FLOOD && a->flood_bits > 48) INVALID("flood_bits", "%u is above 48", a->flood_bits);
    TRY(access_check_address(d, "random", a->random, 8));
    TRY(access_touch(d, &random, "random", a->random, sizeof *a->random, false));
    return access_check_disjoint(d, "random", out, random);
}

static ckks_status describe_counter(describer *d, const kernel_counter_args *a) {
    TRY(access_check_address(d, "random", a->random, 8));
    return access_touch(d, NULL, "random", a->random, sizeof *a->random, true);
}

static ckks_status describe_any(describer *d, const void *arguments) {
    switch (d->kernel) {
    case KERNEL_COPY:
    case KERNEL_NEGATE:
    case KERNEL_SQUARE:
    case KERNEL_NTT_FORWARD:
    case KERNEL_NTT_INVERSE:
        return describe_unary(d, arguments);
    case KERNEL_ADD:
    case KERNEL_SUBTRACT:
    case KERNEL_ADD_PLAIN:
    case KERNEL_MULTIPLY_PLAIN:
    case KERNEL_MULTIPLY:
        return describe_binary(d, arguments);
    case KERNEL_ADD_SCALARS:
    case KERNEL_MULTIPLY_SCALARS:
        return describe_scalars(d, arguments);
    case KERNEL_AUTOMORPHISM:
        return describe_automorphism(d, arguments);
    case KERNEL_MOD_UP:
        return access_describe_mod_up(d, arguments);
    case KERNEL_KEY_PRODUCT:
        return access_describe_key_product(d, arguments);
    case KERNEL_SWITCH_PRODUCT:
        return access_describe_switch_product(d, arguments);
    case KERNEL_KEY_SWITCH:
        return access_describe_key_switch(d, arguments);
    case KERNEL_HOISTED_SWITCH:
        return access_describe_hoisted_switch(d, arguments);
    case KERNEL_MOD_DOWN:
        return access_describe_mod_down(d, arguments);
    case KERNEL_RESCALE: {
        const kernel_rescale_args *a = arguments;
        const uint64_t limbs = (uint64_t)a->a.component_count * a->a.basis.q_count;
        return describe_division(d, &a->out, &a->a, NULL, a->scratch, limbs);
    }
    case KERNEL_MULTIPLY_RESCALE: {
        const kernel_multiply_rescale_args *a = arguments;
        return describe_division(d, &a->out, &a->a, &a->b, a->scratch, a->a.component_count);
    }
    case KERNEL_DIAGONAL_SUM:
        return describe_diagonal_sum(d, arguments);
    case KERNEL_PERMUTE_SUM:
        return describe_permute_sum(d, arguments);
    case KERNEL_MATRIX_PRODUCT:
        return describe_matrix_product(d, arguments);
    case KERNEL_UNPACK:
        return describe_unpack(d, arguments);
    case KERNEL_EXPAND:
        return describe_expand(d, arguments);
    case KERNEL_CHECK_NONZERO:
        return describe_check_nonzero(d, arguments);
    case KERNEL_NARROW_KEY:
        return describe_narrow_key(d, arguments);
    case KERNEL_PACK:
        return describe_pack(d, arguments);
    case KERNEL_SAMPLE:
        return describe_sample(d, arguments);
    case KERNEL_COUNTER_ADVANCE:
        return describe_counter(d, arguments);
    case KERNEL_COUNT:
        break;
    }
    return CKKS_INTERNAL;
}

ckks_status kernel_describe(kernel_id kernel, const void *arguments,
                            kernel_access accesses[KERNEL_ACCESS_MAX], uint32_t *access_count,
                            ckks_error *err) {
    *access_count = 0;
    if ((unsigned)kernel >= KERNEL_COUNT)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "kernel", "%u is no kernel", (unsigned)kernel);
    if (!arguments) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "arguments", "is NULL");
    describer d = {.kernel = kernel, .list = accesses, .err = err};
    const device_tables *tables = *(const device_tables *const *)arguments; /* every struct starts with it */
    if (!tables) return access_refuse(&d, CKKS_INVALID_ARGUMENT, "tables", "is NULL");
    d.params = context_params(device_tables_context(tables));
    d.n = params_n(d.params);
    const ckks_status rc = describe_any(&d, arguments);
    if (rc == CKKS_OK) *access_count = d.count;
    return rc;
}
