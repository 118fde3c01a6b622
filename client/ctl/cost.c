#include "client/ctl/cost.h"

#include "kernels/evaluator/chebyshev.h"

/* ---- counting ---- */

/* launches of a GPU, one after another; a transform of a large ring takes two */
#define STAGES_RAISE   4.0
#define STAGES_DIVIDE  4.0
#define STAGES_SWITCH  8.0 /* product with the key inside */
#define STAGES_RESCALE 3.0

typedef struct shape {
    double limbs, special, digits, digit_size;
} shape;

static shape shape_at(const plan *p, uint32_t level) {
    return (shape){level + 1, p->params->p_count, params_digit_count(p->params, level),
                   p->params->digit_size};
}

/* one polynomial, digit by digit, over Q P */
static void count_raise(double *c, const shape *s) {
    const double others = s->limbs + s->special - s->digit_size;
    c[COST_TRANSFORM] += s->limbs + s->digits * others;
    c[COST_CONVERSION] += s->limbs * others;
}

/* `polynomials` from Q P back to Q */
static void count_divide(double *c, const shape *s, double polynomials) {
    c[COST_TRANSFORM] += polynomials * (s->special + s->limbs);
    c[COST_CONVERSION] += polynomials * s->special * s->limbs;
    c[COST_POINTWISE] += polynomials * s->limbs;
}

static void count_key(double *c, const shape *s, double times) {
    c[COST_KEY] += times * s->digits * (s->limbs + s->special);
}

static void count_switch(double *c, const shape *s) {
    count_raise(c, s);
    count_key(c, s, 1);
    count_divide(c, s, 2);
}

static void count_rescale(double *c, const shape *s, double polynomials) {
    c[COST_TRANSFORM] += polynomials * s->limbs;
    c[COST_POINTWISE] += polynomials * (s->limbs - 1);
}

/* what `times` switches one after another wait for */
static void wait_switch(double *c, double times) {
    c[COST_STAGE] += times * STAGES_SWITCH;
}

static void count_transform(double *c, const plan *p, const plan_operation *o, const shape *s) {
    const plan_transform *t = &p->transforms[o->transform];
    const double over = s->limbs + s->special;
    uint32_t babies = 0, giants = 0;
    for (uint32_t i = 0; i < t->baby_count; i++) babies += t->baby_steps[i] != 0;
    for (uint32_t i = 0; i < t->giant_count; i++) giants += t->giant_steps[i] != 0;
    if (babies) count_raise(c, s);
    c[COST_STAGE] += (babies ? STAGES_RAISE + 1 : 0) + 1 + STAGES_DIVIDE;
    if (giants) c[COST_STAGE] += STAGES_DIVIDE + STAGES_SWITCH + 1;
    count_key(c, s, babies);
    c[COST_LIST] += over * babies * babies;
    c[COST_POINTWISE] += 2 * over * babies;
    c[COST_DIAGONAL] += over * t->term_count;
    for (uint32_t g = 0; g < giants; g++) {
        count_divide(c, s, 1);
        count_raise(c, s);
        count_key(c, s, 1);
        c[COST_POINTWISE] += 2 * over;
    }
    count_divide(c, s, plan_transform_has_results(t) ? 2.0 * t->giant_count : 2);
}

static void count_chebyshev(double *c, const plan *p, const plan_operation *o) {
    const plan_polynomial *poly = &p->polynomials[o->polynomial];
    const plan_value *x = &p->values[o->a], *y = &p->values[o->first_output];
    chebyshev_plan *steps;
    if (chebyshev_plan_create(&steps, p->params, poly->coefficients, poly->degree, x->level, x->scale,
                              y->scale, NULL) != CKKS_OK)
        return;
    for (uint32_t i = 0; i < steps->step_count; i++) {
        const shape s = shape_at(p, steps->steps[i].level);
        c[COST_CALL] += 1;
        c[COST_STAGE] += 1 + STAGES_RESCALE + (steps->steps[i].product_count ? 1 + STAGES_SWITCH : 0);
        c[COST_POINTWISE] += 2 * s.limbs * steps->steps[i].term_count;
        c[COST_POINTWISE] += 4 * s.limbs * steps->steps[i].product_count;
        if (steps->steps[i].product_count) count_switch(c, &s);
        count_rescale(c, &s, 2);
    }
    chebyshev_plan_destroy(steps);
}

static void count_operation(double *c, const plan *p, const plan_operation *o) {
    const plan_value *x = &p->values[o->a];
    const shape s = shape_at(p, x->level);
    const double batch = x->batch_count, components = x->component_count;
    c[COST_CALL] += 1;
    switch (o->kind) {
    case PLAN_MULTIPLY:
    case PLAN_SQUARE:
        c[COST_POINTWISE] += batch * 4 * s.limbs;
        c[COST_STAGE] += 1;
        break;
    case PLAN_RELINEARISE:
        wait_switch(c, 1);
        if (o->with_rescale) c[COST_STAGE] += 1;
        for (uint32_t b = 0; b < x->batch_count; b++) {
            count_switch(c, &s);
            if (o->with_rescale) count_rescale(c, &s, 2);
        }
        break;
    case PLAN_RESCALE:
        count_rescale(c, &s, batch * components);
        c[COST_STAGE] += STAGES_RESCALE;
        break;
    case PLAN_ROTATE:
    case PLAN_CONJUGATE:
        count_switch(c, &s);
        wait_switch(c, 1);
        c[COST_POINTWISE] += 2 * s.limbs;
        break;
    case PLAN_ROTATE_HOISTED:
        count_raise(c, &s);
        count_key(c, &s, o->step_count);
        count_divide(c, &s, 2.0 * o->step_count);
        c[COST_STAGE] += STAGES_RAISE + 1 + STAGES_DIVIDE;
        c[COST_POINTWISE] += 2 * s.limbs * o->step_count;
        break;
    case PLAN_INNER_SUM:
        for (uint32_t i = 0; i < o->step_count; i++) count_switch(c, &s);
        wait_switch(c, o->step_count);
        c[COST_STAGE] += o->step_count;
        c[COST_POINTWISE] += 4 * s.limbs * o->step_count;
        break;
    case PLAN_LINEAR_TRANSFORM:
        count_transform(c, p, o, &s);
        if (o->with_rescale) count_rescale(c, &s, 2);
        if (o->with_rescale) c[COST_STAGE] += 1;
        break;
    case PLAN_CHEBYSHEV:
        for (uint32_t b = 0; b < x->batch_count; b++) count_chebyshev(c, p, o);
        break;
    case PLAN_MATRIX_PRODUCT: {
        const plan_matrix *m = &p->matrices[o->matrix];
        c[COST_MATRIX] += 2.0 * s.limbs * m->row_count * m->column_count;
        c[COST_STAGE] += 1;
        break;
    }
    case PLAN_DROP_LEVEL:
        c[COST_POINTWISE] += batch * components * s.limbs * 0.5;
        c[COST_STAGE] += 1;
        break;
    default:
        c[COST_POINTWISE] += batch * components * s.limbs;
        c[COST_STAGE] += 1;
        break;
    }
}

void cost_count(double passes[COST_KERNELS], const plan *p, uint32_t first, uint32_t count) {
    for (int k = 0; k < COST_KERNELS; k++) passes[k] = 0;
    passes[COST_REPLAY] = 1;
    for (uint32_t i = first; i < first + count; i++) count_operation(passes, p, &p->operations[i]);
}

double cost_sum(const cost_model *model, const double passes[COST_KERNELS]) {
    double ns = 0;
    for (int k = 0; k < COST_KERNELS; k++) ns += passes[k] * model->pass_ns[k];
    return ns;
}

double cost_predict(const cost_model *model, const plan *p, uint32_t first, uint32_t count) {
    double passes[COST_KERNELS];
    cost_count(passes, p, first, count);
    return cost_sum(model, passes);
}

const char *cost_kernel_name(cost_kernel kernel) {
    static const char *const names[COST_KERNELS] = {
        [COST_CALL] = "call",
        [COST_TRANSFORM] = "transform",
        [COST_POINTWISE] = "pointwise",
        [COST_KEY] = "key",
        [COST_CONVERSION] = "conversion",
        [COST_DIAGONAL] = "diagonal",
        [COST_MATRIX] = "matrix",
        [COST_LIST] = "list",
        [COST_STAGE] = "stage",
        [COST_REPLAY] = "replay",
    };
    return names[kernel];
}
