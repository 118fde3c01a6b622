/*
 * What a launch touches, and whether its shapes make sense. One function per argument struct: it validates,
 * then lists. The lists feed three readers: the recorder (races between unordered nodes), the workspace
 * planner (which buffers may share memory) and the front end (is this memory of this device?). So a list that
 * is too short is a bug that shows as corruption, one that is too long costs memory only: where components
 * leave gaps and are many, the whole span is listed.
 *
 * Operands may have more limbs than the output, as long as they have its primes: limbs meet by prime.
 */
#include "kernels/kernels.h"

#include <stdio.h>

#define COMPONENTS_MAX   65536u     /* batches count as components in elementwise kernels */
#define STRIDE_LIMBS_MAX (1u << 24) /* with the bound above, sizes stay below 2^60 bytes */
#define BATCH_MAX        65536u
#define WORDS_ALIGNMENT  16u
#define SPLIT_COMPONENTS 3u /* up to here each component of a strided polynomial is its own access */

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

typedef struct describer {
    kernel_id kernel;
    const ckks_params *params;
    uint64_t n;
    kernel_access *list;
    uint32_t count;
    ckks_error *err;
} describer;

typedef struct range {
    uint32_t begin, end; /* indices into the list */
} range;

__attribute__((format(printf, 4, 5))) static ckks_status refuse(const describer *d, ckks_status code,
                                                                const char *field, const char *format, ...) {
    char where[64], message[192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    snprintf(where, sizeof where, "%s.%s", name[d->kernel], field);
    return ckks_error_set(d->err, code, where, "%s", message);
}
#define INVALID(field, ...) return refuse(d, CKKS_INVALID_ARGUMENT, field, __VA_ARGS__)
#define TRY(expression)                                                                                      \
    do {                                                                                                     \
        const ckks_status try_status = (expression);                                                         \
        if (try_status != CKKS_OK) return try_status;                                                        \
    } while (0)

static ckks_status check_address(const describer *d, const char *field, const void *address,
                                 uint32_t alignment) {
    if (!address) INVALID(field, "is NULL");
    if ((uintptr_t)address % alignment) INVALID(field, "is not %u-byte aligned", alignment);
    return CKKS_OK;
}

static ckks_status touch(describer *d, range *r, const char *field, const void *address, uint64_t bytes,
                         bool is_write) {
    CKKS_ASSERT(d->count < KERNEL_ACCESS_MAX);
    if ((uintptr_t)address + bytes < (uintptr_t)address) INVALID(field, "wraps the address space");
    if (r && r->begin == r->end) r->begin = r->end = d->count;
    d->list[d->count++] = (kernel_access){address, bytes, is_write};
    if (r) r->end = d->count;
    return CKKS_OK;
}

static ckks_status touch_words(describer *d, range *r, const char *field, const uint64_t *words,
                               uint64_t limb_count, bool is_write) {
    TRY(check_address(d, field, words, WORDS_ALIGNMENT));
    return touch(d, r, field, words, limb_count * d->n * sizeof *words, is_write);
}

static ckks_status check_basis(const describer *d, const char *field, kernel_basis b) {
    const ckks_params *p = d->params;
    if (b.q_first > p->q_count || b.q_count > p->q_count - b.q_first || b.p_count > p->p_count)
        INVALID(field, "basis q[%u..+%u], p %u is outside of the parameters (%u q, %u p)", b.q_first,
                b.q_count, b.p_count, p->q_count, p->p_count);
    if (basis_limb_count(b) == 0) INVALID(field, "basis is empty");
    return CKKS_OK;
}

static ckks_status check_poly(const describer *d, const char *field, const kernel_poly *a) {
    TRY(check_basis(d, field, a->basis));
    if (a->component_count == 0 || a->component_count > COMPONENTS_MAX)
        INVALID(field, "component_count %u is not in 1..%u", a->component_count, COMPONENTS_MAX);
    if (a->component_stride < basis_limb_count(a->basis) || a->component_stride > STRIDE_LIMBS_MAX)
        INVALID(field, "component_stride %u is not in %u..%u", a->component_stride,
                basis_limb_count(a->basis), STRIDE_LIMBS_MAX);
    return check_address(d, field, a->words, WORDS_ALIGNMENT);
}

/* validates and lists one polynomial */
static ckks_status touch_poly(describer *d, range *r, const char *field, const kernel_poly *a,
                              bool is_write) {
    TRY(check_poly(d, field, a));
    const uint32_t limbs = basis_limb_count(a->basis);
    if (a->component_stride == limbs || a->component_count > SPLIT_COMPONENTS)
        return touch_words(d, r, field, a->words,
                           (uint64_t)(a->component_count - 1) * a->component_stride + limbs, is_write);
    for (uint32_t c = 0; c < a->component_count; c++)
        TRY(touch_words(d, r, field, a->words + (uint64_t)c * a->component_stride * d->n, limbs, is_write));
    return CKKS_OK;
}

static bool basis_contains(kernel_basis wide, kernel_basis narrow) {
    if (narrow.p_count > wide.p_count) return false;
    return narrow.q_count == 0 ||
           (narrow.q_first >= wide.q_first && narrow.q_first + narrow.q_count <= wide.q_first + wide.q_count);
}
static ckks_status check_contains(const describer *d, const char *field, const kernel_poly *a,
                                  const kernel_poly *out) {
    if (!basis_contains(a->basis, out->basis)) INVALID(field, "lacks primes that the output has");
    return CKKS_OK;
}

static bool ranges_overlap(const describer *d, range x, range y) {
    for (uint32_t i = x.begin; i < x.end; i++) {
        for (uint32_t k = y.begin; k < y.end; k++) {
            const uintptr_t a = (uintptr_t)d->list[i].address, b = (uintptr_t)d->list[k].address;
            if (a < b + d->list[k].bytes && b < a + d->list[i].bytes) return true;
        }
    }
    return false;
}
static ckks_status check_disjoint(const describer *d, const char *field, range out, range in) {
    if (ranges_overlap(d, out, in)) return refuse(d, CKKS_ALIASING, field, "shares memory with the output");
    return CKKS_OK;
}
/* in place is fine when every word is read at the position where it is written */
static ckks_status check_in_place(const describer *d, const char *field, const kernel_poly *out, range out_r,
                                  const kernel_poly *a, range a_r) {
    if (!ranges_overlap(d, out_r, a_r)) return CKKS_OK;
    const bool same_limbs = a->basis.q_first == out->basis.q_first &&
                            (out->basis.p_count == 0 || a->basis.q_count == out->basis.q_count);
    if (a->words == out->words && same_limbs &&
        (a->component_stride == out->component_stride ||
         (a->component_count == 1 && out->component_count == 1)))
        return CKKS_OK;
    return refuse(d, CKKS_ALIASING, field, "overlaps the output without being in place");
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
    TRY(touch_poly(d, &out, "out", &a->out, true));
    TRY(touch_poly(d, &in, "a", &a->a, false));
    TRY(check_contains(d, "a", &a->a, &a->out));
    if (d->kernel == KERNEL_SQUARE) {
        TRY(check_tensor(d, &a->out, &a->a, "a"));
        if (a->a.component_count > 2) return check_disjoint(d, "a", out, in);
    } else if (a->out.component_count != a->a.component_count) {
        INVALID("out", "component_count %u differs from the input's %u", a->out.component_count,
                a->a.component_count);
    }
    return check_in_place(d, "a", &a->out, out, &a->a, in);
}

static ckks_status describe_binary(describer *d, const kernel_binary_args *a) {
    range out = {0}, in_a = {0}, in_b = {0};
    TRY(touch_poly(d, &out, "out", &a->out, true));
    TRY(touch_poly(d, &in_a, "a", &a->a, false));
    TRY(touch_poly(d, &in_b, "b", &a->b, false));
    TRY(check_contains(d, "a", &a->a, &a->out));
    TRY(check_contains(d, "b", &a->b, &a->out));
    const uint32_t ca = a->a.component_count, cb = a->b.component_count;
    uint32_t expected = ca;
    if (d->kernel == KERNEL_ADD || d->kernel == KERNEL_SUBTRACT) {
        expected = ca > cb ? ca : cb;
    } else if (d->kernel == KERNEL_MULTIPLY) {
        if (cb != ca) INVALID("b", "component_count %u is not %u", cb, ca);
        TRY(check_tensor(d, &a->out, &a->a, "a"));
        if (ca > 2) {
            TRY(check_disjoint(d, "a", out, in_a));
            return check_disjoint(d, "b", out, in_b);
        }
        expected = 3;
    } else if (cb != 1) {
        INVALID("b", "a plaintext has 1 component, not %u", cb);
    }
    if (a->out.component_count != expected)
        INVALID("out", "component_count %u is not %u", a->out.component_count, expected);
    TRY(check_in_place(d, "a", &a->out, out, &a->a, in_a));
    /* a plaintext is read for every component, so writing over it would change the later ones */
    if (d->kernel == KERNEL_MULTIPLY_PLAIN && ca > 1) return check_disjoint(d, "b", out, in_b);
    return check_in_place(d, "b", &a->out, out, &a->b, in_b);
}

static ckks_status describe_scalars(describer *d, const kernel_scalars_args *a) {
    range out = {0}, in = {0};
    TRY(touch_poly(d, &out, "out", &a->out, true));
    TRY(touch_poly(d, &in, "a", &a->a, false));
    TRY(check_contains(d, "a", &a->a, &a->out));
    if (a->out.component_count != a->a.component_count)
        INVALID("out", "component_count %u differs from the input's %u", a->out.component_count,
                a->a.component_count);
    if (a->every && a->out.component_count % a->every != 0)
        INVALID("every", "%u components are no multiple of %u", a->out.component_count, a->every);
    for (uint32_t i = 0; i < basis_limb_count(a->out.basis); i++)
        if (a->scalar[i] >= d->params->prime[basis_prime(a->out.basis, i, d->params->q_count)])
            INVALID("scalar", "entry %u is not below its prime", i);
    return check_in_place(d, "a", &a->out, out, &a->a, in);
}

static ckks_status check_galois(const describer *d, const char *field, uint32_t galois_element) {
    if (galois_element % 2 == 0 || galois_element >= 2 * d->n)
        INVALID(field, "Galois element %u is not odd and below 2N", galois_element);
    return CKKS_OK;
}

static ckks_status describe_automorphism(describer *d, const kernel_automorphism_args *a) {
    range out = {0}, in = {0};
    TRY(touch_poly(d, &out, "out", &a->out, true));
    TRY(touch_poly(d, &in, "a", &a->a, false));
    TRY(check_contains(d, "a", &a->a, &a->out));
    if (a->out.component_count != a->a.component_count)
        INVALID("out", "component_count %u differs from the input's %u", a->out.component_count,
                a->a.component_count);
    TRY(check_galois(d, "galois_element", a->galois_element));
    return check_disjoint(d, "a", out, in);
}

/* a basis q[0..l] (and all p, when with_p) */
static ckks_status check_level_basis(const describer *d, const char *field, kernel_basis b, bool with_p) {
    if (b.q_first != 0 || b.q_count == 0 || b.p_count != (with_p ? d->params->p_count : 0))
        INVALID(field, "basis is not q[0..level]%s", with_p ? " and all p" : "");
    return CKKS_OK;
}
static ckks_status check_batch(const describer *d, uint32_t count) {
    if (count == 0 || count > BATCH_MAX) INVALID("batch_count", "%u is not in 1..%u", count, BATCH_MAX);
    return CKKS_OK;
}
/* words of polynomial a, from the first of batch entry 0 to the last of the last entry */
static ckks_status touch_batch(describer *d, range *r, const char *field, const kernel_poly *a,
                               uint32_t batch_count, uint32_t batch_stride, bool is_write) {
    if (batch_count == 1) return touch_poly(d, r, field, a, is_write);
    TRY(check_poly(d, field, a));
    const uint64_t entry =
        (uint64_t)(a->component_count - 1) * a->component_stride + basis_limb_count(a->basis);
    if (batch_stride < entry || batch_stride > STRIDE_LIMBS_MAX)
        INVALID(field, "batch stride %u is below one entry (%llu limbs) or too large", batch_stride,
                (unsigned long long)entry);
    return touch_words(d, r, field, a->words, (uint64_t)(batch_count - 1) * batch_stride + entry, is_write);
}

static ckks_status describe_mod_up(describer *d, const kernel_mod_up_args *a) {
    range out = {0}, in = {0}, scratch = {0};
    TRY(check_poly(d, "a", &a->a));
    TRY(check_level_basis(d, "a", a->a.basis, false));
    if (a->a.component_count != 1) INVALID("a", "component_count %u is not 1", a->a.component_count);
    TRY(check_batch(d, a->batch_count));
    const uint32_t limbs = a->a.basis.q_count;
    const uint64_t digit_count = params_digit_count(d->params, limbs - 1);
    TRY(touch_words(d, &out, "out", a->out, a->batch_count * digit_count * (limbs + d->params->p_count),
                    true));
    TRY(touch_batch(d, &in, "a", &a->a, a->batch_count, a->a_batch_stride, false));
    TRY(touch_words(d, &scratch, "scratch", a->scratch, (uint64_t)a->batch_count * limbs, true));
    TRY(check_disjoint(d, "a", out, in));
    TRY(check_disjoint(d, "scratch", out, scratch));
    return check_disjoint(d, "scratch", scratch, in);
}

static ckks_status check_key_items(const describer *d, const kernel_key_product_args *a) {
    if (!a->items != !a->items_host) INVALID("items", "device and host lists must come together");
    if (!a->items) {
        if (a->item_count != a->out_count || a->item_count != a->digits_count)
            INVALID("item_count", "without a list, items, outputs and digits must be equally many");
        if (a->uniform.key >= a->key_count) INVALID("uniform", "key %u of %u", a->uniform.key, a->key_count);
        return check_galois(d, "uniform", a->uniform.galois_element);
    }
    for (uint32_t i = 0; i < a->item_count; i++) {
        const key_product_item *item = &a->items_host[i];
        if (item->digits >= a->digits_count || item->key >= a->key_count || item->out_index >= a->out_count)
            INVALID("items", "item %u names digits %u, key %u, out %u beyond what there is", i, item->digits,
                    item->key, item->out_index);
        TRY(check_galois(d, "items", item->galois_element));
    }
    return CKKS_OK;
}

static ckks_status describe_key_product(describer *d, const kernel_key_product_args *a) {
    range out = {0}, digits = {0}, add = {0};
    if (a->level >= d->params->q_count) INVALID("level", "%u is above the parameters' highest", a->level);
    if (a->out_count == 0 || a->out_count > BATCH_MAX)
        INVALID("out_count", "%u is not in range", a->out_count);
    if (a->digits_count == 0 || a->digits_count > BATCH_MAX)
        INVALID("digits_count", "%u is not in range", a->digits_count);
    if (!a->keys) INVALID("keys", "is NULL");
    if (a->item_count == 0) INVALID("item_count", "is 0");
    if (a->is_public && a->add) INVALID("add", "does not go with a public key");
    TRY(check_key_items(d, a));
    const uint64_t q_limbs = a->level + 1, limbs = a->is_public ? q_limbs : q_limbs + d->params->p_count;
    const uint64_t digit_count = a->is_public ? 1 : params_digit_count(d->params, a->level);
    TRY(touch_words(d, &out, "out", a->out, a->out_count * 2 * limbs, true));
    TRY(touch_words(d, &digits, "digits", a->digits, a->digits_count * digit_count * limbs, false));
    if (a->add) {
        if ((a->digits_count > 1 && a->add_stride < q_limbs) || a->add_stride > STRIDE_LIMBS_MAX)
            INVALID("add_stride", "%u is below one entry (%llu limbs) or too large", a->add_stride,
                    (unsigned long long)q_limbs);
        TRY(touch_words(d, &add, "add", a->add, (uint64_t)(a->digits_count - 1) * a->add_stride + q_limbs,
                        false));
        TRY(check_disjoint(d, "add", out, add));
    }
    return check_disjoint(d, "digits", out, digits);
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
        return check_galois(d, "uniform", a->uniform.galois_element);
    }
    for (uint32_t i = 0; i < a->batch_count; i++) {
        const key_product_item *item = &a->items_host[i];
        if (item->digits != i || item->out_index != (a->is_sum ? 0 : i))
            INVALID("items", "item %u names digits %u, out %u: not in order", i, item->digits,
                    item->out_index);
        TRY(check_key(d, "items", item->key, a->key_count));
        TRY(check_galois(d, "items", item->galois_element));
    }
    return CKKS_OK;
}

static ckks_status describe_switch_product(describer *d, const kernel_switch_product_args *a) {
    range out = {0}, in = {0}, scratch = {0};
    TRY(check_poly(d, "a", &a->a));
    TRY(check_level_basis(d, "a", a->a.basis, false));
    if (a->a.component_count != 1) INVALID("a", "component_count %u is not 1", a->a.component_count);
    TRY(check_batch(d, a->batch_count));
    if (!a->keys) INVALID("keys", "is NULL");
    TRY(check_switch_items(d, a));
    const uint32_t q_limbs = a->a.basis.q_count;
    const uint64_t out_count = a->is_sum ? 1 : a->batch_count;
    TRY(touch_words(d, &out, "out", a->out, out_count * 2 * (q_limbs + d->params->p_count), true));
    TRY(touch_batch(d, &in, "a", &a->a, a->batch_count, a->a_batch_stride, false));
    TRY(touch_words(d, &scratch, "scratch", a->scratch,
                    switch_product_scratch(d->params, q_limbs, a->batch_count), true));
    TRY(check_disjoint(d, "a", out, in));
    TRY(check_disjoint(d, "scratch", out, scratch));
    return check_disjoint(d, "scratch", scratch, in);
}

static ckks_status describe_key_switch(describer *d, const kernel_key_switch_args *a) {
    range out = {0}, in = {0}, add = {0}, scratch = {0};
    TRY(check_poly(d, "a", &a->a));
    TRY(check_level_basis(d, "a", a->a.basis, false));
    if (a->a.component_count != 1) INVALID("a", "component_count %u is not 1", a->a.component_count);
    TRY(check_poly(d, "out", &a->out));
    TRY(check_level_basis(d, "out", a->out.basis, false));
    TRY(check_batch(d, a->batch_count));
    if (!a->keys) INVALID("keys", "is NULL");
    TRY(check_key(d, "key", a->key, a->key_count));
    TRY(check_galois(d, "galois_element", a->galois_element));
    const uint32_t q_limbs = a->a.basis.q_count, dropped = a->with_rescale ? 1 : 0;
    if (q_limbs <= dropped) INVALID("with_rescale", "there is no prime to drop at level 0");
    if (a->out.basis.q_count != q_limbs - dropped)
        INVALID("out", "%u limbs are not %u", a->out.basis.q_count, q_limbs - dropped);
    if (a->out.component_count != 2) INVALID("out", "component_count %u is not 2", a->out.component_count);
    TRY(touch_batch(d, &out, "out", &a->out, a->batch_count, a->out_batch_stride, true));
    TRY(touch_batch(d, &in, "a", &a->a, a->batch_count, a->a_batch_stride, false));
    if (a->add.words) {
        TRY(check_poly(d, "add", &a->add));
        TRY(check_level_basis(d, "add", a->add.basis, false));
        if (a->add.basis.q_count != q_limbs || a->add.component_count > 2)
            INVALID("add", "%u limbs, %u components do not fit the input", a->add.basis.q_count,
                    a->add.component_count);
        TRY(touch_batch(d, &add, "add", &a->add, a->batch_count, a->add_batch_stride, false));
        TRY(check_disjoint(d, "add", out, add));
    }
    TRY(touch_words(d, &scratch, "scratch", a->scratch,
                    key_switch_scratch(d->params, q_limbs, a->batch_count), true));
    TRY(check_disjoint(d, "a", out, in));
    TRY(check_disjoint(d, "scratch", out, scratch));
    TRY(check_disjoint(d, "scratch", scratch, add));
    return check_disjoint(d, "scratch", scratch, in);
}

static ckks_status describe_hoisted_switch(describer *d, const kernel_hoisted_switch_args *a) {
    range out = {0}, in = {0}, add = {0}, scratch = {0};
    const uint32_t q_limbs = a->a.basis.q_count;
    TRY(touch_poly(d, &in, "a", &a->a, false));
    TRY(check_level_basis(d, "a", a->a.basis, false));
    TRY(check_poly(d, "out", &a->out));
    TRY(check_level_basis(d, "out", a->out.basis, false));
    if (a->a.component_count != 1) INVALID("a", "component_count %u is not 1", a->a.component_count);
    if (a->out.component_count != 2 || a->out.basis.q_count != q_limbs)
        INVALID("out", "%u components of %u limbs", a->out.component_count, a->out.basis.q_count);
    if (!a->out_count || a->out_count > BATCH_MAX) INVALID("out_count", "%u is not in range", a->out_count);
    if (!a->keys || !a->items || !a->items_host) INVALID(a->keys ? "items" : "keys", "is NULL");
    const kernel_key_product_args product = {
        NULL,     NULL,          a->out_count,  0,   NULL, 1, NULL, 0, a->keys, a->key_count,
        a->items, a->items_host, a->item_count, {0}, 0};
    TRY(check_key_items(d, &product));
    for (uint32_t t = 0, i; t < a->out_count; t++) {
        for (i = 0; i < a->item_count && a->items_host[i].out_index != t;) i++;
        if (i == a->item_count) INVALID("items", "none names out %u", t);
    }
    TRY(touch_batch(d, &out, "out", &a->out, a->out_count, a->out_batch_stride, true));
    if (a->add.words) {
        TRY(touch_poly(d, &add, "add", &a->add, false));
        TRY(check_level_basis(d, "add", a->add.basis, false));
        if (a->add.component_count != 1 || a->add.basis.q_count != q_limbs)
            INVALID("add", "does not fit the input");
        TRY(check_disjoint(d, "add", out, add));
    }
    TRY(touch_words(d, &scratch, "scratch", a->scratch,
                    hoisted_switch_scratch(d->params, q_limbs, a->out_count), true));
    TRY(check_disjoint(d, "a", out, in));
    TRY(check_disjoint(d, "scratch", scratch, out));
    TRY(check_disjoint(d, "scratch", scratch, add));
    return check_disjoint(d, "scratch", scratch, in);
}

static ckks_status describe_mod_down(describer *d, const kernel_mod_down_args *a) {
    range out = {0}, in = {0}, add = {0}, scratch = {0};
    TRY(check_poly(d, "a", &a->a));
    TRY(check_level_basis(d, "a", a->a.basis, true));
    TRY(check_poly(d, "out", &a->out));
    TRY(check_level_basis(d, "out", a->out.basis, false));
    TRY(check_batch(d, a->batch_count));
    const uint32_t limbs = a->a.basis.q_count, dropped = a->with_rescale ? 1 : 0;
    if (limbs <= dropped) INVALID("with_rescale", "there is no prime to drop at level 0");
    if (a->out.basis.q_count != limbs - dropped)
        INVALID("out", "%u limbs are not %u", a->out.basis.q_count, limbs - dropped);
    if (a->out.component_count != a->a.component_count)
        INVALID("out", "component_count %u differs from the input's %u", a->out.component_count,
                a->a.component_count);
    TRY(touch_batch(d, &out, "out", &a->out, a->batch_count, a->out_batch_stride, true));
    TRY(touch_batch(d, &in, "a", &a->a, a->batch_count, a->a_batch_stride, false));
    if (a->add.words) {
        TRY(check_poly(d, "add", &a->add));
        TRY(check_level_basis(d, "add", a->add.basis, false));
        if (a->add.basis.q_count != limbs || a->add.component_count > a->a.component_count)
            INVALID("add", "%u limbs, %u components do not fit the input", a->add.basis.q_count,
                    a->add.component_count);
        TRY(check_galois(d, "add_galois_element", a->add_galois_element));
        TRY(touch_batch(d, &add, "add", &a->add, a->batch_count, a->add_batch_stride, false));
        TRY(check_disjoint(d, "add", out, add));
    }
    const uint64_t scratch_limbs =
        (uint64_t)a->batch_count * a->a.component_count * (d->params->p_count + 2ull * limbs);
    TRY(touch_words(d, &scratch, "scratch", a->scratch, scratch_limbs, true));
    TRY(check_disjoint(d, "a", out, in));
    TRY(check_disjoint(d, "scratch", out, scratch));
    TRY(check_disjoint(d, "scratch", scratch, add));
    return check_disjoint(d, "scratch", scratch, in);
}

/* b: NULL, or what a is multiplied by first */
static ckks_status describe_division(describer *d, const kernel_poly *out, const kernel_poly *a,
                                     const kernel_poly *b, const uint64_t *scratch, uint64_t scratch_limbs) {
    range to = {0}, in = {0}, plain = {0}, work = {0};
    TRY(touch_poly(d, &to, "out", out, true));
    TRY(touch_poly(d, &in, "a", a, false));
    TRY(check_level_basis(d, "a", a->basis, false));
    TRY(check_level_basis(d, "out", out->basis, false));
    const uint32_t limbs = a->basis.q_count;
    if (limbs < 2) INVALID("a", "there is no prime to drop at level 0");
    if (out->basis.q_count != limbs - 1) INVALID("out", "%u limbs are not %u", out->basis.q_count, limbs - 1);
    if (out->component_count != a->component_count)
        INVALID("out", "component_count %u differs from the input's %u", out->component_count,
                a->component_count);
    if (b) {
        TRY(touch_poly(d, &plain, "b", b, false));
        TRY(check_level_basis(d, "b", b->basis, false));
        if (b->component_count != 1 || b->basis.q_count != limbs)
            INVALID("b", "%u components, %u limbs are not 1, %u", b->component_count, b->basis.q_count,
                    limbs);
    }
    TRY(touch_words(d, &work, "scratch", scratch, scratch_limbs, true));
    TRY(check_disjoint(d, "a", to, in));
    TRY(check_disjoint(d, "b", to, plain));
    TRY(check_disjoint(d, "scratch", to, work));
    TRY(check_disjoint(d, "scratch", work, plain));
    return check_disjoint(d, "scratch", work, in);
}

static ckks_status check_sum_counts(const describer *d, uint32_t out_count, uint32_t in_count,
                                    uint32_t component_count) {
    if (out_count == 0 || out_count > COMPONENTS_MAX) INVALID("out_count", "%u is not in range", out_count);
    if (in_count == 0 || in_count > COMPONENTS_MAX) INVALID("in_count", "%u is not in range", in_count);
    if (component_count == 0 || component_count > 3)
        INVALID("component_count", "%u is not in 1..3", component_count);
    return CKKS_OK;
}

static ckks_status describe_diagonal_sum(describer *d, const kernel_diagonal_sum_args *a) {
    range out = {0}, in = {0};
    TRY(check_basis(d, "basis", a->basis));
    TRY(check_sum_counts(d, a->out_count, a->in_count, a->component_count));
    if (!a->items || !a->items_host) INVALID("items", "is NULL");
    if (a->item_count == 0) INVALID("item_count", "is 0");
    uint32_t previous = 0;
    for (uint32_t i = 0; i < a->item_count; i++) {
        const diagonal_item *item = &a->items_host[i];
        if (item->out >= a->out_count || item->in >= a->in_count)
            INVALID("items", "item %u names out %u, in %u beyond what there is", i, item->out, item->in);
        if (item->plain == 0 || item->plain % WORDS_ALIGNMENT)
            INVALID("items", "item %u has no aligned plaintext", i);
        if (item->out < previous) INVALID("items", "item %u is out of order", i);
        previous = item->out;
    }
    const uint64_t entry = (uint64_t)a->component_count * basis_limb_count(a->basis);
    TRY(touch_words(d, &out, "out", a->out, a->out_count * entry, true));
    TRY(touch_words(d, &in, "in", a->in, a->in_count * entry, false));
    return check_disjoint(d, "in", out, in);
}

static ckks_status describe_permute_sum(describer *d, const kernel_permute_sum_args *a) {
    range out = {0}, in = {0}, start = {0};
    TRY(touch_poly(d, &out, "out", &a->out, true));
    if (a->out.component_count != 1) INVALID("out", "component_count %u is not 1", a->out.component_count);
    TRY(check_sum_counts(d, 1, a->in_count, 1));
    if (!a->items || !a->items_host) INVALID("items", "is NULL");
    const uint32_t limbs = basis_limb_count(a->out.basis);
    if ((a->in_count > 1 && a->in_stride < limbs) || a->in_stride > STRIDE_LIMBS_MAX)
        INVALID("in_stride", "%u is below one entry (%u limbs) or too large", a->in_stride, limbs);
    for (uint32_t i = 0; i < a->item_count; i++) {
        if (a->items_host[i].in >= a->in_count)
            INVALID("items", "item %u names entry %u of %u", i, a->items_host[i].in, a->in_count);
        TRY(check_galois(d, "items", a->items_host[i].galois_element));
    }
    TRY(touch_words(d, &in, "in", a->in, (uint64_t)(a->in_count - 1) * a->in_stride + limbs, false));
    if (a->start) {
        TRY(touch_words(d, &start, "start", a->start, limbs, false));
        if (a->start != a->out.words) TRY(check_disjoint(d, "start", out, start));
    }
    return check_disjoint(d, "in", out, in);
}

static ckks_status describe_matrix_product(describer *d, const kernel_matrix_product_args *a) {
    range out = {0}, in = {0};
    TRY(check_basis(d, "basis", a->basis));
    TRY(check_sum_counts(d, a->row_count, a->column_count, a->component_count));
    TRY(check_address(d, "weight", a->weight, WORDS_ALIGNMENT));
    const uint64_t entry = (uint64_t)a->component_count * basis_limb_count(a->basis);
    TRY(touch_words(d, &out, "out", a->out, a->row_count * entry, true));
    TRY(touch_words(d, &in, "in", a->in, a->column_count * entry, false));
    return check_disjoint(d, "in", out, in);
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
    TRY(check_address(d, "packed", packed, 16));
    const uint64_t expected = packed_bytes(d, poly);
    if (bytes != expected)
        INVALID("packed_bytes", "%llu is not %llu", (unsigned long long)bytes, (unsigned long long)expected);
    return touch(d, r, "packed", packed, bytes, is_write);
}
static ckks_status touch_verdict(describer *d, uint32_t *verdict) {
    TRY(check_address(d, "verdict", verdict, sizeof *verdict));
    return touch(d, NULL, "verdict", verdict, sizeof *verdict, true);
}

static ckks_status describe_unpack(describer *d, const kernel_unpack_args *a) {
    range out = {0}, packed = {0};
    TRY(touch_poly(d, &out, "out", &a->out, true));
    TRY(touch_packed(d, &packed, a->packed, a->packed_bytes, &a->out, false));
    TRY(check_disjoint(d, "packed", out, packed));
    return touch_verdict(d, a->verdict);
}

static ckks_status describe_pack(describer *d, const kernel_pack_args *a) {
    range out = {0}, in = {0};
    TRY(touch_poly(d, &in, "a", &a->a, false));
    TRY(touch_packed(d, &out, a->packed, a->packed_bytes, &a->a, true));
    return check_disjoint(d, "a", out, in);
}

static ckks_status describe_expand(describer *d, const kernel_expand_args *a) {
    range out = {0}, seed = {0};
    TRY(touch_poly(d, &out, "out", &a->out, true));
    TRY(check_address(d, "seed", a->seed, 4));
    TRY(touch(d, &seed, "seed", a->seed, 32, false));
    return check_disjoint(d, "seed", out, seed);
}

static ckks_status describe_check_nonzero(describer *d, const kernel_check_nonzero_args *a) {
    TRY(touch_poly(d, NULL, "a", &a->a, false));
    if (a->a.component_count != 1) INVALID("a", "component_count %u is not 1", a->a.component_count);
    return touch_verdict(d, a->verdict);
}

static ckks_status describe_sample(describer *d, const kernel_sample_args *a) {
    range out = {0}, random = {0};
    TRY(touch_poly(d, &out, "out", &a->out, true));
    if (a->out.component_count != 1) INVALID("out", "component_count %u is not 1", a->out.component_count);
    if (a->kind != SAMPLE_TERNARY && a->kind != SAMPLE_ERROR && a->kind != SAMPLE_FLOOD)
        INVALID("kind", "%u is unknown", a->kind);
    if (a->kind == SAMPLE_FLOOD && a->flood_bits > 48) INVALID("flood_bits", "%u is above 48", a->flood_bits);
    TRY(check_address(d, "random", a->random, 8));
    TRY(touch(d, &random, "random", a->random, sizeof *a->random, false));
    return check_disjoint(d, "random", out, random);
}

static ckks_status describe_counter(describer *d, const kernel_counter_args *a) {
    TRY(check_address(d, "random", a->random, 8));
    return touch(d, NULL, "random", a->random, sizeof *a->random, true);
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
        return describe_mod_up(d, arguments);
    case KERNEL_KEY_PRODUCT:
        return describe_key_product(d, arguments);
    case KERNEL_SWITCH_PRODUCT:
        return describe_switch_product(d, arguments);
    case KERNEL_KEY_SWITCH:
        return describe_key_switch(d, arguments);
    case KERNEL_HOISTED_SWITCH:
        return describe_hoisted_switch(d, arguments);
    case KERNEL_MOD_DOWN:
        return describe_mod_down(d, arguments);
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
    if (!tables) return refuse(&d, CKKS_INVALID_ARGUMENT, "tables", "is NULL");
    d.params = context_params(device_tables_context(tables));
    d.n = params_n(d.params);
    const ckks_status rc = describe_any(&d, arguments);
    if (rc == CKKS_OK) *access_count = d.count;
    return rc;
}
