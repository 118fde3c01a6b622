/*
 * CKKS operations, composed of kernels. Each takes its memory from the workspace it is handed, never
 * allocates, never waits, and enqueues on one stream: so it is capture-compatible by construction.
 *
 * Outputs first. An output value is a workspace value that the function acquires (release it with
 * evaluator_release when dead), except where a function says that the caller provides words (`*_into`).
 * Scales: the caller states the scale of a product's result through the plan; the evaluator computes
 *   multiply, square: RN(a * b);   multiply_plain: RN(a * plain);   rescale: RN(scale / q_l)
 * in binary64, and refuses to add values whose scales differ in any bit (CKKS_SIGNATURE_MISMATCH, field
 * "scale"). Values of different level are brought together by the caller (drop_level): mismatches are refused
 * by name.
 *
 * Threads: one evaluator, one thread.
 */
#ifndef CKKS_EVALUATOR_H
#define CKKS_EVALUATOR_H

#include "kernels/device.h"
#include "kernels/evaluator/chebyshev.h"
#include "kernels/evaluator/workspace.h"

typedef struct evaluator {
    device_stream *stream;
    const device_tables *tables;
    const ckks_context *context;
    workspace *memory;
    const key_table_entry *keys; /* device address of the key table */
    uint32_t key_count;
    random_state *random;   /* device address; NULL if the program draws nothing */
    uint64_t random_blocks; /* drawn so far in this run; evaluator_random_finish advances the counter by it */
    const ckks_value *places; /* see evaluator_place */
    uint32_t place_count;
} evaluator;

/* evaluator_place: where the results of the next operation may go instead of into the workspace, so that they
 * need no copy to leave a program: result i into places[i].words, if all of them have its shape. It holds
 * until the next call (count 0 = none); whoever placed looks at a result's words to see where it is. The
 * words are the caller's; nothing that the operation reads may lie there. For operations that acquire nothing
 * but their results: not for polynomials and fresh randomness. */
void evaluator_place(evaluator *ev, const ckks_value *places, uint32_t count);

/* evaluator_release gives the value's memory back to the workspace and zeroes *value. Accepts a zeroed value,
 * and one that was placed. */
ckks_status evaluator_release(evaluator *ev, ckks_value *value);

/* A value may hold a batch: every operation treats its entries alike. Refusals are CKKS_SIGNATURE_MISMATCH
 * with the field of value_signature that differs, CKKS_KEY_MISSING for an index outside the key table,
 * CKKS_OUT_OF_RANGE for a scale that leaves the range of doubles; *out is then zeroed. */

ckks_status evaluator_add(evaluator *ev, ckks_value *out, const ckks_value *a, const ckks_value *b,
                          ckks_error *err);
ckks_status evaluator_subtract(evaluator *ev, ckks_value *out, const ckks_value *a, const ckks_value *b,
                               ckks_error *err);
ckks_status evaluator_negate(evaluator *ev, ckks_value *out, const ckks_value *a, ckks_error *err);
ckks_status evaluator_add_plain(evaluator *ev, ckks_value *out, const ckks_value *a, const ckks_value *plain,
                                ckks_error *err);
ckks_status evaluator_multiply_plain(evaluator *ev, ckks_value *out, const ckks_value *a,
                                     const ckks_value *plain, ckks_error *err);
/* the constant is encoded at a's scale (add) or at `constant_scale` (multiply) */
ckks_status evaluator_add_constant(evaluator *ev, ckks_value *out, const ckks_value *a, double constant,
                                   ckks_error *err);
ckks_status evaluator_multiply_constant(evaluator *ev, ckks_value *out, const ckks_value *a, double constant,
                                        double constant_scale, ckks_error *err);
/* three components; relinearise before anything that is not addition */
ckks_status evaluator_multiply(evaluator *ev, ckks_value *out, const ckks_value *a, const ckks_value *b,
                               ckks_error *err);
ckks_status evaluator_square(evaluator *ev, ckks_value *out, const ckks_value *a, ckks_error *err);
/* with_rescale: merged ModDown and rescale (its words differ from the two steps one after the other) */
ckks_status evaluator_relinearise(evaluator *ev, ckks_value *out, const ckks_value *a, uint32_t relin_key,
                                  bool with_rescale, ckks_error *err);
ckks_status evaluator_rescale(evaluator *ev, ckks_value *out, const ckks_value *a, ckks_error *err);
/* the words of evaluator_multiply_plain and then evaluator_rescale; the product is not written where the
 * device can do without */
ckks_status evaluator_multiply_plain_rescale(evaluator *ev, ckks_value *out, const ckks_value *a,
                                             const ckks_value *plain, ckks_error *err);
ckks_status evaluator_drop_level(evaluator *ev, ckks_value *out, const ckks_value *a, uint32_t level,
                                 ckks_error *err);

/* A Galois element and the index of its key in the key table. element 1 needs no key. */
typedef struct galois_step {
    uint32_t galois_element;
    uint32_t key;
} galois_step;

/* galois_element_rotate: the element that rotates left by `steps` (negative = right); 5^steps mod 2N. */
uint32_t galois_element_rotate(uint32_t log_n, int64_t steps);
static inline uint32_t galois_element_conjugate(uint32_t log_n) {
    return (2u << log_n) - 1u;
}

ckks_status evaluator_apply_galois(evaluator *ev, ckks_value *out, const ckks_value *a, galois_step step,
                                   ckks_error *err);

/* ---- prepared operations: descriptors live on the device, made before capture, destroyed after the last
 * replay ---- */

#define HOISTED_STEPS_MAX          4096u
#define LINEAR_TRANSFORM_STEPS_MAX 4096u /* baby, and giant, steps */
#define LINEAR_TRANSFORM_TERMS_MAX (1u << 20)

typedef struct hoisted_rotations hoisted_rotations;
/* One decomposition, many steps. out[count], each released on its own. Words equal to
 * evaluator_apply_galois's. */
ckks_status hoisted_rotations_create(hoisted_rotations **out, device *dev, const ckks_context *context,
                                     const galois_step *steps, uint32_t count, ckks_error *err);
void hoisted_rotations_destroy(hoisted_rotations *h);
ckks_status evaluator_rotate_hoisted(evaluator *ev, ckks_value *out, const hoisted_rotations *h,
                                     const ckks_value *a, ckks_error *err);
/* The sum of all of them, added up over QP: one division by P whatever the number of steps, and its rounding
 * once. Words:
 *   y     MOD_DOWN(sum over the steps that need a key of KEY_PRODUCT(mod_up(a1), key), plus P * permute(a0))
 *   out   y plus a for each step that is the identity */
ckks_status evaluator_sum_hoisted(evaluator *ev, ckks_value *out, const hoisted_rotations *h,
                                  const ckks_value *a, ckks_error *err);

/*
 * Linear transform y = sum_g rot_g( sum_b plain[g][b] * rot_b(x) ), a sparse set of generalised diagonals,
 * double hoisted: baby steps stay in QP, one ModDown per giant step (of component 1 only), one final ModDown,
 * merged with the rescale where `with_rescale`. The number of launches does not depend on the number of
 * terms.
 *
 * plain[g][b] is encoded over QP at x's level, already rotated right by g (so that slots meet). Words:
 *
 *   U_b   KEY_PRODUCT(mod_up(x1), b), plus P * rot_b(x0) in component 0;  U_0 = (P x0, P x1)
 *   V_g   sum over b of plain[g][b] * U_b
 *   KP_g  KEY_PRODUCT(mod_up(mod_down(V_g.1)), g)
 *   acc0  sum over g of rot_g(V_g.0) + KP_g.0
 *   acc1  sum over g of KP_g.1;  for g = 0 V_0.1 itself
 *   y     mod_down(acc)
 *
 * Several giants that are all the identity make a transform of several results, one for each giant, which
 * share the baby steps: y_g = mod_down(V_g). Each needs a term.
 */
typedef struct linear_transform_term {
    uint32_t giant, baby; /* indices into giants and babies */
    uint64_t *plain;      /* device words [q_0..q_l, p][N]; the caller keeps them alive */
} linear_transform_term;

typedef struct linear_transform linear_transform;
ckks_status linear_transform_create(linear_transform **out, device *dev, const ckks_context *context,
                                    uint32_t level, const galois_step *babies, uint32_t baby_count,
                                    const galois_step *giants, uint32_t giant_count,
                                    const linear_transform_term *terms, uint32_t term_count,
                                    bool with_rescale, double plain_scale, ckks_error *err);
void linear_transform_destroy(linear_transform *lt);
ckks_status evaluator_linear_transform(evaluator *ev, ckks_value *out, const linear_transform *lt,
                                       const ckks_value *a, ckks_error *err);
/* the results of a transform of several, in out[out_count]; out_count 1: all of them as the entries of one
 * batch, where `a` is a batch of one */
ckks_status evaluator_linear_transform_many(evaluator *ev, ckks_value *out, uint32_t out_count,
                                            const linear_transform *lt, const ckks_value *a, ckks_error *err);

/* Polynomial in the Chebyshev basis by its schedule (chebyshev.h), whose level and scale `a` must have bit
 * for bit. relin_key is not used when the plan has no product. */
ckks_status evaluator_chebyshev(evaluator *ev, ckks_value *out, const chebyshev_plan *plan,
                                const ckks_value *a, uint32_t relin_key, ckks_error *err);

/* sum over `count` (power of two) rotations by stride, 2*stride, ...: log2(count) steps; step i has keys[i].
 */
ckks_status evaluator_inner_sum(evaluator *ev, ckks_value *out, const ckks_value *a, const galois_step *steps,
                                uint32_t step_count, ckks_error *err);

/* clear weights times a batch of ciphertexts: out has row_count batch entries. weight: device
 * [limb][row][column]; bias: NULL, or device [limb][row], encoded at out's scale, RN(a * weight_scale). */
ckks_status evaluator_matrix_product(evaluator *ev, ckks_value *out, const ckks_value *a,
                                     const uint64_t *weight, const uint64_t *bias, uint32_t row_count,
                                     double weight_scale, ckks_error *err);

/* adds an encryption of zero under the public key (key table entry), truncated to a's level, plus optional
 * flooding noise of `flood_bits` bits (0 = none). Draws from ev->random. */
ckks_status evaluator_rerandomise(evaluator *ev, ckks_value *out, const ckks_value *a, uint32_t public_key,
                                  uint32_t flood_bits, ckks_error *err);
/* records the counter advance for everything drawn; call once at the end of a run that drew. */
ckks_status evaluator_random_finish(evaluator *ev, ckks_error *err);

#endif
