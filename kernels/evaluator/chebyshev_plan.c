#include "kernels/evaluator/chebyshev.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BABY_BITS_MAX  6u
#define TERMS_MAX      ((1u << BABY_BITS_MAX) + 16u) /* of one sum: a leaf and one power per split */
#define PRODUCTS_MAX   16u                           /* of one sum: each split halves the degree */
#define ULP_SEARCH     4
#define SPLIT_BITS_MAX 6u /* at most about 2^6 splits */

/* relative costs for choosing the number of baby steps: a key switch, a product, a term */
#define COST_SWITCH  10.0
#define COST_PRODUCT 1.0
#define COST_TERM    0.4

static uint32_t ceil_log2(uint32_t value) {
    uint32_t bits = 0;
    while ((UINT64_C(1) << bits) < value) bits++;
    return bits;
}

uint32_t chebyshev_depth(uint32_t degree) {
    return ceil_log2(degree + 1);
}

typedef struct builder {
    const ckks_params *params;
    chebyshev_plan *plan;
    uint32_t baby_bits;
    uint32_t term_capacity, product_capacity;
    uint32_t basis[CHEBYSHEV_DEGREE_MAX + 1]; /* value of T_i; UINT32_MAX = not yet */
    double *stack;                            /* quotients of the splits in progress */
    ckks_error *err;
} builder;

/* One sum in the making. */
typedef struct sum {
    chebyshev_term terms[TERMS_MAX];
    chebyshev_product products[PRODUCTS_MAX];
    uint32_t term_count, product_count, product_factor, level;
    double constant, sum_scale;
} sum;

static uint32_t value_level_of(const builder *b, uint32_t value) {
    return value ? b->plan->steps[value - 1].level - 1 : b->plan->level_in;
}
static double value_scale_of(const builder *b, uint32_t value) {
    return value ? b->plan->steps[value - 1].scale : b->plan->scale_in;
}

/* x near target / a with RN(x * a) == target if one is within reach */
static double factor_towards(double target, double a) {
    const double nearest = target / a;
    double above = nearest, below = nearest;
    for (int i = 0; i <= ULP_SEARCH; i++) {
        if (above * a == target) return above;
        if (below * a == target) return below;
        above = nextafter(above, INFINITY);
        below = nextafter(below, 0);
    }
    return nearest;
}

/* x near target * q with RN(x / q) == target if one is within reach */
static double dividend_towards(double target, double q) {
    const double nearest = target * q;
    double above = nearest, below = nearest;
    for (int i = 0; i <= ULP_SEARCH; i++) {
        if (above / q == target) return above;
        if (below / q == target) return below;
        above = nextafter(above, INFINITY);
        below = nextafter(below, 0);
    }
    return nearest;
}

/* does a sum of this scale fit the modulus of its level, with room for values up to 4? */
static bool scale_fits(const builder *b, double scale, uint32_t level) {
    double bits = 0;
    for (uint32_t i = 0; i <= level; i++) bits += log2((double)b->params->prime[i]);
    return isnormal(scale) && scale >= 1 && log2(scale) + 3 < bits;
}

static void *grow(void *list, uint32_t *capacity, uint32_t needed, size_t item) {
    if (list && needed <= *capacity) return list;
    const uint32_t wanted = 2 * needed + 16;
    void *grown = realloc(list, wanted * item);
    if (grown) *capacity = wanted;
    return grown;
}

/* Appends the sum as a step whose result has the stated scale. */
static ckks_status append(builder *b, uint32_t *value, const sum *s, double scale) {
    chebyshev_plan *p = b->plan;
    if (p->step_count == CHEBYSHEV_STEPS_MAX)
        return ckks_error_set(b->err, CKKS_INVALID_ARGUMENT, "degree", "more than %u steps",
                              CHEBYSHEV_STEPS_MAX);
    if (!scale_fits(b, s->sum_scale, s->level) || !isnormal(scale) || scale < 1)
        return ckks_error_set(b->err, CKKS_PRECISION, "scale",
                              "a sum at level %u would have scale %a, its result %a", s->level, s->sum_scale,
                              scale);
    for (uint32_t i = 0; i < s->term_count; i++)
        if (!(s->terms[i].constant_scale >= 1) || !isfinite(s->terms[i].constant_scale))
            return ckks_error_set(b->err, CKKS_PRECISION, "coefficient",
                                  "a coefficient would be encoded at scale %a", s->terms[i].constant_scale);
    chebyshev_term *terms =
        grow(p->terms, &b->term_capacity, p->term_count + s->term_count + 1, sizeof *terms);
    if (terms) p->terms = terms;
    chebyshev_product *products =
        grow(p->products, &b->product_capacity, p->product_count + s->product_count + 1, sizeof *products);
    if (products) p->products = products;
    if (!terms || !products)
        return ckks_error_set(b->err, CKKS_RESOURCE_EXHAUSTED, "degree", "no memory for the schedule");
    p->steps[p->step_count] = (chebyshev_step){
        .first_term = p->term_count,
        .term_count = s->term_count,
        .first_product = p->product_count,
        .product_count = s->product_count,
        .product_factor = s->product_factor,
        .level = s->level,
        .constant = s->constant,
        .sum_scale = s->sum_scale,
        .scale = scale,
    };
    memcpy(p->terms + p->term_count, s->terms, s->term_count * sizeof *terms);
    memcpy(p->products + p->product_count, s->products, s->product_count * sizeof *products);
    p->term_count += s->term_count;
    p->product_count += s->product_count;
    *value = ++p->step_count;
    return CKKS_OK;
}

static void add_term(const builder *b, sum *s, uint32_t value, double coefficient) {
    CKKS_ASSERT(s->term_count < TERMS_MAX && value_level_of(b, value) >= s->level);
    s->terms[s->term_count++] =
        (chebyshev_term){value, coefficient, factor_towards(s->sum_scale, value_scale_of(b, value))};
}

/* T_n = 2 * T_a * T_b - T_{a - b} with a = ceil(n / 2), b = floor(n / 2): the least depth, and T_{a - b} is
 * the input or 1. */
static ckks_status basis(builder *b, uint32_t *value, uint32_t n) {
    ckks_status rc;
    uint32_t left = 0, right = 0;
    sum s = {.product_count = 1, .product_factor = 2};
    *value = b->basis[n];
    if (*value != UINT32_MAX) return CKKS_OK;
    if ((rc = basis(b, &left, n - n / 2)) != CKKS_OK) return rc;
    if ((rc = basis(b, &right, n / 2)) != CKKS_OK) return rc;
    const uint32_t level_left = value_level_of(b, left), level_right = value_level_of(b, right);
    s.level = level_left < level_right ? level_left : level_right;
    s.sum_scale = value_scale_of(b, left) * value_scale_of(b, right);
    s.products[0] = (chebyshev_product){left, right};
    if (n % 2)
        add_term(b, &s, 0, -1);
    else
        s.constant = -1;
    rc = append(b, value, &s, s.sum_scale / (double)b->params->prime[s.level]);
    if (rc == CKKS_OK) b->basis[n] = *value;
    return rc;
}

/* p = q * T_m + r for m <= degree < 2m: r stays in p[0..m), q is written to quotient[0..degree - m]. */
static void divide(double *quotient, double *p, uint32_t degree, uint32_t m) {
    quotient[0] = p[m];
    for (uint32_t j = 1; m + j <= degree; j++) {
        quotient[j] = 2 * p[m + j];
        p[m - j] -= p[m + j];
    }
}

/* One step for p[0..degree], degree < 2^budget, whose result is `budget` levels below the input and has the
 * stated scale. p is overwritten; scratch: space for its quotients. */
static ckks_status combine(builder *b, uint32_t *value, double *p, uint32_t degree, uint32_t budget,
                           double scale, double *scratch) {
    ckks_status rc;
    sum s = {.product_factor = 1, .level = b->plan->level_in - (budget - 1)};
    const uint32_t leaf_bits = b->baby_bits < budget - 1 ? b->baby_bits : budget - 1;
    s.sum_scale = dividend_towards(scale, (double)b->params->prime[s.level]);
    while (degree > 1u << leaf_bits) {
        const uint32_t bits = ceil_log2(degree + 1) - 1, m = 1u << bits, quotient_degree = degree - m;
        uint32_t power = 0, quotient = 0;
        if ((rc = basis(b, &power, m)) != CKKS_OK) return rc;
        divide(scratch, p, degree, m);
        if (!quotient_degree) {
            add_term(b, &s, power, scratch[0]);
        } else {
            rc =
                combine(b, &quotient, scratch, quotient_degree, budget - 1,
                        factor_towards(s.sum_scale, value_scale_of(b, power)), scratch + quotient_degree + 1);
            if (rc != CKKS_OK) return rc;
            CKKS_ASSERT(s.product_count < PRODUCTS_MAX);
            s.products[s.product_count++] = (chebyshev_product){quotient, power};
        }
        for (degree = m - 1; degree && p[degree] == 0;) degree--;
    }
    for (uint32_t i = 1; i <= degree; i++) {
        uint32_t power = 0;
        if (p[i] == 0) continue;
        if ((rc = basis(b, &power, i)) != CKKS_OK) return rc;
        add_term(b, &s, power, p[i]);
    }
    s.constant = p[0];
    return append(b, value, &s, scale);
}

static double plan_cost(const chebyshev_plan *p) {
    double cost = COST_PRODUCT * p->product_count + COST_TERM * p->term_count;
    for (uint32_t i = 0; i < p->step_count; i++)
        if (p->steps[i].product_count) cost += COST_SWITCH;
    return cost;
}

static void mark_use(chebyshev_plan *p, uint32_t value, uint32_t step) {
    if (value)
        p->steps[value - 1].last_use = step;
    else
        p->input_last_use = step;
}

static void find_last_uses(chebyshev_plan *p) {
    for (uint32_t i = 0; i < p->step_count; i++) {
        chebyshev_step *s = &p->steps[i];
        s->last_use = i;
        if (s->product_count && s->level > p->relin_level) p->relin_level = s->level;
        for (uint32_t k = 0; k < s->term_count; k++) mark_use(p, p->terms[s->first_term + k].value, i);
        for (uint32_t k = 0; k < s->product_count; k++) {
            mark_use(p, p->products[s->first_product + k].left, i);
            mark_use(p, p->products[s->first_product + k].right, i);
        }
    }
}

/* The plan with 2^baby_bits baby steps. */
static ckks_status build(chebyshev_plan **out, const chebyshev_plan *shape, const ckks_params *params,
                         const double *coefficient, uint32_t baby_bits, ckks_error *err) {
    ckks_status rc;
    uint32_t value = 0;
    const size_t count = (size_t)shape->degree + 1;
    double *work = calloc(4 * count + 64, sizeof *work);
    builder *b = calloc(1, sizeof *b);
    chebyshev_plan *p = calloc(1, sizeof *p);
    if (p) {
        *p = *shape;
        p->steps = calloc(CHEBYSHEV_STEPS_MAX, sizeof *p->steps);
    }
    if (!work || !b || !p || !p->steps) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "degree", "no memory for the schedule");
        goto out;
    }
    b->params = params;
    b->plan = p;
    b->baby_bits = baby_bits;
    b->err = err;
    for (size_t i = 0; i < count; i++) b->basis[i] = UINT32_MAX;
    b->basis[1] = 0;
    memcpy(work, coefficient, count * sizeof *work);
    rc = combine(b, &value, work, p->degree, chebyshev_depth(p->degree), p->scale_out, work + count);
    if (rc != CKKS_OK) goto out;
    find_last_uses(p);
    *out = p, p = NULL;
out:
    chebyshev_plan_destroy(p);
    free(b);
    free(work);
    return rc;
}

static ckks_status input_check(const ckks_params *params, const double *coefficient, uint32_t degree,
                               uint32_t level_in, double scale_in, double scale_out, ckks_error *err) {
    if (!degree || degree > CHEBYSHEV_DEGREE_MAX)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "degree", "%u; 1 to %u", degree,
                              CHEBYSHEV_DEGREE_MAX);
    for (uint32_t i = 0; i <= degree; i++)
        if (!isfinite(coefficient[i]))
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "coefficient", "coefficient %u is not finite",
                                  i);
    if (coefficient[degree] == 0)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "coefficient", "the leading coefficient is zero");
    if (level_in > params_level_max(params) || level_in < chebyshev_depth(degree))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "level_in",
                              "level %u; degree %u takes %u of at most %u levels", level_in, degree,
                              chebyshev_depth(degree), params_level_max(params));
    if (!isnormal(scale_in) || scale_in < 1)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "scale_in", "scale %a", scale_in);
    if (!isnormal(scale_out) || scale_out < 1)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "scale_out", "scale %a", scale_out);
    return CKKS_OK;
}

ckks_status chebyshev_plan_create(chebyshev_plan **out, const ckks_params *params, const double *coefficient,
                                  uint32_t degree, uint32_t level_in, double scale_in, double scale_out,
                                  ckks_error *err) {
    ckks_status rc;
    chebyshev_plan *best = NULL;
    if ((rc = input_check(params, coefficient, degree, level_in, scale_in, scale_out, err)) != CKKS_OK)
        return rc;
    const uint32_t depth = chebyshev_depth(degree);
    chebyshev_plan shape = {
        .degree = degree,
        .level_in = level_in,
        .level_out = level_in - depth,
        .scale_in = scale_in,
        .scale_out = scale_out,
    };
    memcpy(shape.parameter_id, params->id, sizeof shape.parameter_id);
    /* few baby steps of a high degree are never best, and would pass the limit of steps */
    for (uint32_t bits = depth > SPLIT_BITS_MAX ? depth - SPLIT_BITS_MAX : 0;
         bits < depth && bits <= BABY_BITS_MAX; bits++) {
        chebyshev_plan *p = NULL;
        if ((rc = build(&p, &shape, params, coefficient, bits, err)) != CKKS_OK) goto out;
        if (!best || plan_cost(p) < plan_cost(best)) {
            chebyshev_plan *worse = best;
            best = p, p = worse;
        }
        chebyshev_plan_destroy(p);
    }
    *out = best, best = NULL;
out:
    chebyshev_plan_destroy(best);
    return rc;
}

void chebyshev_plan_destroy(chebyshev_plan *plan) {
    if (!plan) return;
    free(plan->steps);
    free(plan->terms);
    free(plan->products);
    free(plan);
}

uint32_t chebyshev_plan_level_out(const chebyshev_plan *plan) {
    return plan->level_out;
}

bool chebyshev_plan_relin_level(const chebyshev_plan *plan, uint32_t *level) {
    *level = plan->relin_level;
    return plan->product_count > 0;
}

double chebyshev_interpret(const chebyshev_plan *plan, double x) {
    double value[CHEBYSHEV_STEPS_MAX + 1];
    value[0] = x;
    for (uint32_t i = 0; i < plan->step_count; i++) {
        const chebyshev_step *s = &plan->steps[i];
        double total = s->constant;
        for (uint32_t k = 0; k < s->product_count; k++) {
            const chebyshev_product product = plan->products[s->first_product + k];
            total += s->product_factor * (value[product.left] * value[product.right]);
        }
        for (uint32_t k = 0; k < s->term_count; k++) {
            const chebyshev_term term = plan->terms[s->first_term + k];
            total += term.coefficient * value[term.value];
        }
        value[i + 1] = total;
    }
    return value[plan->step_count];
}
