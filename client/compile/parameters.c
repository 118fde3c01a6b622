#include "client/compile/parameters.h"

#include <math.h>
#include <string.h>

/* The first q carries the message at the end; the others are dropped one per level; each digit's product
 * stays below P. Two primes per digit need a third fewer transforms, and fewer bytes of keys, than one. */
typedef struct menu_row {
    uint32_t log_n, q0_bits, q_bits, depth_max, p_bits, p_count, digit_size;
} menu_row;

static const menu_row menu[] = {
    /* one layer that is not rescaled: q0 has room for input, weights and scores */
    {12, 50, 28, 0, 50, 1, 1},  {13, 50, 28, 0, 50, 1, 1},  {12, 38, 28, 1, 38, 1, 1},
    {13, 40, 30, 4, 50, 1, 1},  {14, 50, 40, 7, 50, 2, 2},  {14, 50, 40, 8, 50, 1, 1},
    {15, 50, 40, 16, 50, 3, 3}, {15, 45, 35, 21, 44, 2, 2}, {16, 50, 40, 16, 50, 3, 3},
    {16, 50, 40, 34, 50, 6, 6}, {17, 50, 40, 16, 50, 3, 3},
};

_Static_assert(sizeof menu / sizeof *menu <= PARAMETER_ROWS_MAX, "the menu is short");

static ckks_status generate(parameter_choice *out, const menu_row *row, uint32_t log_n, uint32_t depth,
                            ckks_error *err) {
    uint32_t q_bits[CKKS_PRIMES_MAX], p_bits[CKKS_DIGIT_SIZE_MAX];
    for (uint32_t i = 0; i <= depth; i++) q_bits[i] = i ? row->q_bits : row->q0_bits;
    for (uint32_t i = 0; i < row->p_count; i++) p_bits[i] = row->p_bits;
    out->scale = ldexp(1.0, (int)row->q_bits);
    return params_generate(&out->params, log_n, q_bits, depth + 1, p_bits, row->p_count, row->digit_size,
                           err);
}

ckks_status parameter_choose(parameter_choice *out, uint32_t *row, const parameter_wish *wish,
                             ckks_error *err) {
    ckks_error gate = {0};
    for (; *row < sizeof menu / sizeof *menu; ++*row) {
        const menu_row *r = &menu[*row];
        const uint32_t log_n = wish->log_n ? wish->log_n : r->log_n;
        ckks_error local = {0};
        if (r->depth_max < wish->depth || (!r->depth_max != !wish->depth) ||
            (uint64_t)1 << (log_n - 1) < wish->slot_count)
            continue;
        if (generate(out, r, log_n, wish->depth, &local) != CKKS_OK) continue;
        if (wish->allow_insecure) return CKKS_OK;
        if (params_gate(&out->params, wish->security_bits, &local) == CKKS_OK) return CKKS_OK;
        if (!gate.code) gate = local;
    }
    if (gate.code) return ckks_error_set(err, gate.code, gate.field, "%s", gate.message);
    return ckks_error_set(err, CKKS_NOT_FOUND, "parameters", "no parameter set has %u levels and %u slots%s",
                          wish->depth, wish->slot_count, wish->log_n ? " at the ring degree asked for" : "");
}

uint32_t parameter_depth_max(uint32_t security_bits) {
    uint32_t deepest = 0;
    for (uint32_t i = 0; i < sizeof menu / sizeof *menu; i++) {
        parameter_choice choice;
        ckks_error local = {0};
        uint32_t depth = menu[i].depth_max;
        while (depth > deepest && (generate(&choice, &menu[i], menu[i].log_n, depth, &local) != CKKS_OK ||
                                   params_gate(&choice.params, security_bits, &local) != CKKS_OK))
            depth--;
        if (depth > deepest) deepest = depth;
    }
    return deepest;
}
