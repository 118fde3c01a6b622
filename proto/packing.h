/*
 * Residues on the wire: one LSB-first bit stream per limb at the bit width of its modulus, zero-padded to 16
 * bytes. Pure, thread-safe; the oracle of the UNPACK and PACK kernels.
 */
#ifndef CKKS_PROTO_PACKING_H
#define CKKS_PROTO_PACKING_H

#include "kernels/scheme/keys.h"

/* bytes of one packed limb */
uint64_t packing_limb_bytes(uint32_t n, uint64_t prime);
/* bytes of `component_count` components of q[0..level] and, if with_p, all p */
uint64_t packing_poly_bytes(const ckks_params *params, uint32_t level, bool with_p, uint32_t component_count);
/* bytes of one seeded key as it travels (component 0 of each digit) */
uint64_t packing_key_bytes(const ckks_params *params, const key_requirement *key);
/* bytes of a whole key set payload; false if it overflows */
bool packing_key_set_bytes(uint64_t *out, const ckks_params *params, const key_requirement *keys,
                           uint32_t count);

/* packing_pack_limb: residues must be below prime (asserted). out has packing_limb_bytes bytes, all written.
 */
void packing_pack_limb(uint8_t *out, const uint64_t *words, uint32_t n, uint64_t prime);
/* packing_unpack_limb: CKKS_RESIDUE_RANGE (field "residue" or "padding", index in the message). */
ckks_status packing_unpack_limb(uint64_t *words, const uint8_t *packed, uint32_t n, uint64_t prime,
                                ckks_error *err);

/* whole polynomials: words [component][limb][N], limbs q[0..level] then p if with_p */
void packing_pack(uint8_t *out, const uint64_t *words, const ckks_params *params, uint32_t level, bool with_p,
                  uint32_t component_count);
ckks_status packing_unpack(uint64_t *words, const uint8_t *packed, const ckks_params *params, uint32_t level,
                           bool with_p, uint32_t component_count, ckks_error *err);
/* packing_check: packing_unpack's refusals without its words. */
ckks_status packing_check(const uint8_t *packed, const ckks_params *params, uint32_t level, bool with_p,
                          uint32_t component_count, ckks_error *err);

#endif
