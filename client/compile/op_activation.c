/* Functions of one number that become polynomials over the range that the calibration rows show. */
#include "client/compile/operator.h"

#include <string.h>

static ir_function function_of(const model_node *node) {
    const char *type = node->proto->op_type;
    return strcmp(type, "Relu") == 0 ? IR_RELU : strcmp(type, "Tanh") == 0 ? IR_TANH : IR_SIGMOID;
}

static ckks_status activation_evaluate(evaluation *e, ckks_error *err) {
    const ckks_status rc = output_like(e, 0, e->in[0], err);
    static const double none[IR_PARAMETERS];
    for (uint32_t i = 0; rc == CKKS_OK && i < e->out[0]->count; i++)
        e->out[0]->data[i] = ir_function_value(function_of(e->node), none, e->in[0]->data[i]);
    return rc;
}

static ckks_status activation_lower(lowering *l, const model_node *node, ckks_error *err) {
    ir_node made = {.kind = IR_ACTIVATION,
                    .count = l->model->values[node->outputs[0]].sample.count,
                    .a = lower_symbol(l, node, 0)->node,
                    .function = function_of(node)};
    return lower_append(l, node, &made, err);
}

/* a sigmoid at the very end needs no polynomial: the client applies it to the decrypted score */
static ckks_status sigmoid_lower(lowering *l, const model_node *node, ckks_error *err) {
    if (!l->is_final[node->outputs[0]]) return activation_lower(l, node, err);
    l->symbols[node->outputs[0]] = (symbol){.kind = SYMBOL_CLIENT,
                                            .node = lower_symbol(l, node, 0)->node,
                                            .score_value = node->inputs[0],
                                            .steps = {.link = POST_SIGMOID}};
    return CKKS_OK;
}

const operator_row operators_activation[] = {
    {"", "Relu", 1, 1, 1, 0, activation_evaluate, activation_lower, NULL},
    {"", "Sigmoid", 1, 1, 1, 0, activation_evaluate, sigmoid_lower, NULL},
    {"", "Tanh", 1, 1, 1, 0, activation_evaluate, activation_lower, NULL},
    {0},
};
