/*
 * Shared by the functions that describe launches: one of them validates an argument struct and lists what it
 * touches. Their first refusal names the kernel and the field.
 */
#ifndef CKKS_KERNEL_ACCESS_INTERNAL_H
#define CKKS_KERNEL_ACCESS_INTERNAL_H

#include "kernels/kernels.h"

#define ACCESS_COMPONENTS_MAX   65536u     /* batches count as components in elementwise kernels */
#define ACCESS_STRIDE_LIMBS_MAX (1u << 24) /* with the bound above, sizes stay below 2^60 bytes */
#define ACCESS_BATCH_MAX        65536u
#define ACCESS_ALIGNMENT        16u

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

ckks_status access_refuse(const describer *d, ckks_status code, const char *field, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define INVALID(field, ...) return access_refuse(d, CKKS_INVALID_ARGUMENT, field, __VA_ARGS__)
#define TRY(expression)                                                                                      \
    do {                                                                                                     \
        const ckks_status try_status = (expression);                                                         \
        if (try_status != CKKS_OK) return try_status;                                                        \
    } while (0)

/* ---- checks alone ---- */

ckks_status access_check_address(const describer *d, const char *field, const void *address,
                                 uint32_t alignment);
ckks_status access_check_basis(const describer *d, const char *field, kernel_basis b);
ckks_status access_check_poly(const describer *d, const char *field, const kernel_poly *a);
ckks_status access_check_contains(const describer *d, const char *field, const kernel_poly *a,
                                  const kernel_poly *out);
/* access_check_level_basis: a basis q[0..level], with all p when with_p */
ckks_status access_check_level_basis(const describer *d, const char *field, kernel_basis b, bool with_p);
ckks_status access_check_batch(const describer *d, uint32_t count);
ckks_status access_check_galois(const describer *d, const char *field, uint32_t galois_element);

/* ---- checks, and entries of the list; *r (or NULL) becomes where they are ---- */

ckks_status access_touch(describer *d, range *r, const char *field, const void *address, uint64_t bytes,
                         bool is_write);
ckks_status access_touch_words(describer *d, range *r, const char *field, const uint64_t *words,
                               uint64_t limb_count, bool is_write);
ckks_status access_touch_poly(describer *d, range *r, const char *field, const kernel_poly *a, bool is_write);
/* access_touch_batch: words of polynomial a, from the first of batch entry 0 to the last of the last entry */
ckks_status access_touch_batch(describer *d, range *r, const char *field, const kernel_poly *a,
                               uint32_t batch_count, uint32_t batch_stride, bool is_write);

/* ---- what was listed, against each other ---- */

ckks_status access_check_disjoint(const describer *d, const char *field, range out, range in);
/* access_check_in_place: overlapping is fine when every word is read at the position where it is written */
ckks_status access_check_in_place(const describer *d, const char *field, const kernel_poly *out, range out_r,
                                  const kernel_poly *a, range a_r);

/* ---- kernel_access_switch.c ---- */

ckks_status access_describe_mod_up(describer *d, const kernel_mod_up_args *a);
ckks_status access_describe_key_product(describer *d, const kernel_key_product_args *a);
ckks_status access_describe_switch_product(describer *d, const kernel_switch_product_args *a);
ckks_status access_describe_key_switch(describer *d, const kernel_key_switch_args *a);
ckks_status access_describe_hoisted_switch(describer *d, const kernel_hoisted_switch_args *a);
ckks_status access_describe_mod_down(describer *d, const kernel_mod_down_args *a);

#endif
