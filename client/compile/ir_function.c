/* The functions of one number that a model may apply element by element. */
#include "client/compile/ir.h"

#include <math.h>

static const char *const names[] = {
    [IR_RELU] = "relu",
    [IR_SIGMOID] = "sigmoid",
    [IR_TANH] = "tanh",
    [IR_SILU] = "silu",
    [IR_LEAKY_RELU] = "leaky relu",
    [IR_ELU] = "elu",
    [IR_SELU] = "selu",
    [IR_CELU] = "celu",
    [IR_SOFTPLUS] = "softplus",
    [IR_SOFTSIGN] = "softsign",
    [IR_HARD_SIGMOID] = "hard sigmoid",
    [IR_HARD_SWISH] = "hard swish",
    [IR_GELU] = "gelu",
    [IR_GELU_TANH] = "gelu (tanh)",
    [IR_MISH] = "mish",
    [IR_ERF] = "erf",
    [IR_ERFC] = "erfc",
    [IR_CLIP] = "clip",
    [IR_ABS] = "abs",
    [IR_EXP] = "exp",
    [IR_LOG] = "log",
    [IR_SIN] = "sin",
    [IR_COS] = "cos",
    [IR_SINH] = "sinh",
    [IR_COSH] = "cosh",
    [IR_ATAN] = "atan",
    [IR_ASINH] = "asinh",
    [IR_POW] = "power",
};

const char *ir_function_name(ir_function function) {
    const char *name = (size_t)function < sizeof names / sizeof *names ? names[function] : NULL;
    return name ? name : "";
}

ir_domain ir_function_domain(ir_function function, const double p[IR_PARAMETERS]) {
    if (function == IR_LOG) return IR_DOMAIN_POSITIVE;
    if (function != IR_POW) return IR_DOMAIN_ALL;
    if (p[0] != floor(p[0])) return IR_DOMAIN_POSITIVE;
    return p[0] < 0 ? IR_DOMAIN_NOT_ZERO : IR_DOMAIN_ALL;
}

/* log(1 + exp(x)) without overflow */
static double softplus(double x) {
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}
static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}
static double clip(double x, double low, double high) {
    return fmin(fmax(x, low), high);
}

double ir_function_value(ir_function function, const double p[IR_PARAMETERS], double x) {
    switch (function) {
    case IR_RELU:
        return x > 0 ? x : 0;
    case IR_SIGMOID:
        return sigmoid(x);
    case IR_TANH:
        return tanh(x);
    case IR_SILU:
        return x * sigmoid(x);
    case IR_LEAKY_RELU:
        return x > 0 ? x : p[0] * x;
    case IR_ELU:
        return x > 0 ? x : p[0] * expm1(x);
    case IR_SELU:
        return p[1] * (x > 0 ? x : p[0] * expm1(x));
    case IR_CELU:
        return x > 0 ? x : p[0] * expm1(x / p[0]);
    case IR_SOFTPLUS:
        return softplus(x);
    case IR_SOFTSIGN:
        return x / (1 + fabs(x));
    case IR_HARD_SIGMOID:
        return clip(p[0] * x + p[1], 0, 1);
    case IR_HARD_SWISH:
        return x * clip(x / 6 + 0.5, 0, 1);
    case IR_GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case IR_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case IR_MISH:
        return x * tanh(softplus(x));
    case IR_ERF:
        return erf(x);
    case IR_ERFC:
        return erfc(x);
    case IR_CLIP:
        return clip(x, p[0], p[1]);
    case IR_ABS:
        return fabs(x);
    case IR_EXP:
        return exp(x);
    case IR_LOG:
        return log(x);
    case IR_SIN:
        return sin(x);
    case IR_COS:
        return cos(x);
    case IR_SINH:
        return sinh(x);
    case IR_COSH:
        return cosh(x);
    case IR_ATAN:
        return atan(x);
    case IR_ASINH:
        return asinh(x);
    case IR_POW:
        return pow(x, p[0]);
    }
    return x;
}
