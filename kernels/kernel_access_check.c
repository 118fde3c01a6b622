/* What the descriptions of all kernels have in common (kernel_access.c). */
#include "kernels/kernel_access_internal.h"

#include <stdio.h>

#define SPLIT_COMPONENTS 3u /* up to here each component of a strided polynomial is its own access */

ckks_status access_refuse(const describer *d, ckks_status code, const char *field, const char *format, ...) {
    char where[64], message[192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    snprintf(where, sizeof where, "%s.%s", kernel_name(d->kernel), field);
    return ckks_error_set(d->err, code, where, "%s", message);
}
ckks_status access_check_address(const describer *d, const char *field, const void *address,
                                 uint32_t alignment) {
    if (!address) INVALID(field, "is NULL");
    if ((uintptr_t)address % alignment) INVALID(field, "is not %u-byte aligned", alignment);
    return CKKS_OK;
}

ckks_status access_touch(describer *d, range *r, const char *field, const void *address, uint64_t bytes,
                         bool is_write) {
    CKKS_ASSERT(d->count < KERNEL_ACCESS_MAX);
    if ((uintptr_t)address + bytes < (uintptr_t)address) INVALID(field, "wraps the address space");
    if (r && r->begin == r->end) r->begin = r->end = d->count;
    d->list[d->count++] = (kernel_access){address, bytes, is_write};
    if (r) r->end = d->count;
    return CKKS_OK;
}

ckks_status access_touch_words(describer *d, range *r, const char *field, const uint64_t *words,
                               uint64_t limb_count, bool is_write) {
    TRY(access_check_address(d, field, words, ACCESS_ALIGNMENT));
    return access_touch(d, r, field, words, limb_count * d->n * sizeof *words, is_write);
}

ckks_status access_check_basis(const describer *d, const char *field, kernel_basis b) {
    const ckks_params *p = d->params;
    if (b.q_first > p->q_count || b.q_count > p->q_count - b.q_first || b.p_count > p->p_count)
        INVALID(field, "basis q[%u..+%u], p %u is outside of the parameters (%u q, %u p)", b.q_first,
                b.q_count, b.p_count, p->q_count, p->p_count);
    if (basis_limb_count(b) == 0) INVALID(field, "basis is empty");
    return CKKS_OK;
}

ckks_status access_check_poly(const describer *d, const char *field, const kernel_poly *a) {
    TRY(access_check_basis(d, field, a->basis));
    if (a->component_count == 0 || a->component_count > ACCESS_COMPONENTS_MAX)
        INVALID(field, "component_count %u is not in 1..%u", a->component_count, ACCESS_COMPONENTS_MAX);
    if (a->component_stride < basis_limb_count(a->basis) || a->component_stride > ACCESS_STRIDE_LIMBS_MAX)
        INVALID(field, "component_stride %u is not in %u..%u", a->component_stride,
                basis_limb_count(a->basis), ACCESS_STRIDE_LIMBS_MAX);
    return access_check_address(d, field, a->words, ACCESS_ALIGNMENT);
}

/* validates and lists one polynomial */
ckks_status access_touch_poly(describer *d, range *r, const char *field, const kernel_poly *a,
                              bool is_write) {
    TRY(access_check_poly(d, field, a));
    const uint32_t limbs = basis_limb_count(a->basis);
    if (a->component_stride == limbs || a->component_count > SPLIT_COMPONENTS)
        return access_touch_words(d, r, field, a->words,
                                  (uint64_t)(a->component_count - 1) * a->component_stride + limbs, is_write);
    for (uint32_t c = 0; c < a->component_count; c++)
        TRY(access_touch_words(d, r, field, a->words + (uint64_t)c * a->component_stride * d->n, limbs,
                               is_write));
    return CKKS_OK;
}

static bool basis_contains(kernel_basis wide, kernel_basis narrow) {
    if (narrow.p_count > wide.p_count) return false;
    return narrow.q_count == 0 ||
           (narrow.q_first >= wide.q_first && narrow.q_first + narrow.q_count <= wide.q_first + wide.q_count);
}
ckks_status access_check_contains(const describer *d, const char *field, const kernel_poly *a,
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
ckks_status access_check_disjoint(const describer *d, const char *field, range out, range in) {
    if (ranges_overlap(d, out, in))
        return access_refuse(d, CKKS_ALIASING, field, "shares memory with the output");
    return CKKS_OK;
}
/* in place is fine when every word is read at the position where it is written */
ckks_status access_check_in_place(const describer *d, const char *field, const kernel_poly *out, range out_r,
                                  const kernel_poly *a, range a_r) {
    if (!ranges_overlap(d, out_r, a_r)) return CKKS_OK;
    const bool same_limbs = a->basis.q_first == out->basis.q_first &&
                            (out->basis.p_count == 0 || a->basis.q_count == out->basis.q_count);
    if (a->words == out->words && same_limbs &&
        (a->component_stride == out->component_stride ||
         (a->component_count == 1 && out->component_count == 1)))
        return CKKS_OK;
    return access_refuse(d, CKKS_ALIASING, field, "overlaps the output without being in place");
}

ckks_status access_check_galois(const describer *d, const char *field, uint32_t galois_element) {
    if (galois_element % 2 == 0 || galois_element >= 2 * d->n)
        INVALID(field, "Galois element %u is not odd and below 2N", galois_element);
    return CKKS_OK;
}

/* a basis q[0..l] (and all p, when with_p) */
ckks_status access_check_level_basis(const describer *d, const char *field, kernel_basis b, bool with_p) {
    if (b.q_first != 0 || b.q_count == 0 || b.p_count != (with_p ? d->params->p_count : 0))
        INVALID(field, "basis is not q[0..level]%s", with_p ? " and all p" : "");
    return CKKS_OK;
}
ckks_status access_check_batch(const describer *d, uint32_t count) {
    if (count == 0 || count > ACCESS_BATCH_MAX)
        INVALID("batch_count", "%u is not in 1..%u", count, ACCESS_BATCH_MAX);
    return CKKS_OK;
}
/* words of polynomial a, from the first of batch entry 0 to the last of the last entry */
ckks_status access_touch_batch(describer *d, range *r, const char *field, const kernel_poly *a,
                               uint32_t batch_count, uint32_t batch_stride, bool is_write) {
    if (batch_count == 1) return access_touch_poly(d, r, field, a, is_write);
    TRY(access_check_poly(d, field, a));
    const uint64_t entry =
        (uint64_t)(a->component_count - 1) * a->component_stride + basis_limb_count(a->basis);
    if (batch_stride < entry || batch_stride > ACCESS_STRIDE_LIMBS_MAX)
        INVALID(field, "batch stride %u is below one entry (%llu limbs) or too large", batch_stride,
                (unsigned long long)entry);
    return access_touch_words(d, r, field, a->words, (uint64_t)(batch_count - 1) * batch_stride + entry,
                              is_write);
}
