#include "tests/support/onnx_builder.h"

#include "client/compile/arena.h"
#include "kernels/base/status.h"

#include <stdlib.h>
#include <string.h>

#define ITEMS_MAX 600u

struct onnx_builder {
    arena memory;
    Onnx__Model model;
    Onnx__Graph graph;
    Onnx__OperatorSet sets[2];
    Onnx__OperatorSet *set_list[2];
    Onnx__Node *nodes[ITEMS_MAX];
    Onnx__Tensor *tensors[ITEMS_MAX];
    Onnx__ValueInfo *inputs[ITEMS_MAX], *outputs[ITEMS_MAX];
};

static void *take(onnx_builder *b, size_t count, size_t size) {
    void *piece = arena_take(&b->memory, count, size);
    CKKS_ASSERT(piece != NULL);
    return piece;
}
static char *text(onnx_builder *b, const char *literal) {
    char *copy = arena_text(&b->memory, literal);
    CKKS_ASSERT(copy != NULL);
    return copy;
}

onnx_builder *onnx_builder_create(void) {
    onnx_builder *b = calloc(1, sizeof *b);
    CKKS_ASSERT(b != NULL);
    onnx__model__init(&b->model);
    onnx__graph__init(&b->graph);
    b->model.graph = &b->graph;
    b->model.has_ir_version = 1, b->model.ir_version = 8;
    for (int i = 0; i < 2; i++) {
        onnx__operator_set__init(&b->sets[i]);
        b->sets[i].domain = text(b, i ? "ai.onnx.ml" : "");
        b->sets[i].has_version = 1, b->sets[i].version = i ? 3 : 17;
        b->set_list[i] = &b->sets[i];
    }
    b->model.opset_import = b->set_list, b->model.n_opset_import = 2;
    b->graph.node = b->nodes, b->graph.initializer = b->tensors;
    b->graph.input = b->inputs, b->graph.output = b->outputs;
    return b;
}

void onnx_builder_destroy(onnx_builder *b) {
    if (!b) return;
    arena_fini(&b->memory);
    free(b);
}

static Onnx__ValueInfo *value_info(onnx_builder *b, const char *name) {
    Onnx__ValueInfo *info = take(b, 1, sizeof *info);
    onnx__value_info__init(info);
    info->name = text(b, name);
    return info;
}

void onnx_builder_input(onnx_builder *b, const char *name, size_t rank, const int64_t *dims) {
    Onnx__ValueInfo *info = value_info(b, name);
    Onnx__Type *type = take(b, 1, sizeof *type);
    Onnx__TensorType *tensor = take(b, 1, sizeof *tensor);
    Onnx__Shape *shape = take(b, 1, sizeof *shape);
    onnx__type__init(type);
    onnx__tensor_type__init(tensor);
    onnx__shape__init(shape);
    shape->dim = take(b, rank, sizeof(void *));
    shape->n_dim = rank;
    for (size_t i = 0; i < rank; i++) {
        shape->dim[i] = take(b, 1, sizeof **shape->dim);
        onnx__dimension__init(shape->dim[i]);
        if (dims[i] == -1)
            shape->dim[i]->dim_param = text(b, "n");
        else
            shape->dim[i]->has_dim_value = 1, shape->dim[i]->dim_value = dims[i];
    }
    tensor->has_elem_type = 1, tensor->elem_type = 1;
    tensor->shape = shape;
    type->tensor_type = tensor;
    info->type = type;
    CKKS_ASSERT(b->graph.n_input < ITEMS_MAX);
    b->inputs[b->graph.n_input++] = info;
}

void onnx_builder_output(onnx_builder *b, const char *name) {
    CKKS_ASSERT(b->graph.n_output < ITEMS_MAX);
    b->outputs[b->graph.n_output++] = value_info(b, name);
}

Onnx__Tensor *onnx_builder_tensor(onnx_builder *b, const char *name, size_t rank, const int64_t *dims,
                                  size_t count, const float *values) {
    Onnx__Tensor *t = take(b, 1, sizeof *t);
    onnx__tensor__init(t);
    t->name = text(b, name);
    t->has_data_type = 1, t->data_type = 1;
    t->dims = take(b, rank, sizeof *t->dims), t->n_dims = rank;
    if (rank) memcpy(t->dims, dims, rank * sizeof *dims);
    t->float_data = take(b, count, sizeof *t->float_data), t->n_float_data = count;
    for (size_t i = 0; i < count; i++) t->float_data[i] = values ? values[i] : (float)(i % 7) * 0.25f - 0.75f;
    CKKS_ASSERT(b->graph.n_initializer < ITEMS_MAX);
    b->tensors[b->graph.n_initializer++] = t;
    return t;
}

static char **names(onnx_builder *b, size_t *count, const char *list) {
    char *copy = text(b, list);
    char **out = take(b, 8, sizeof *out);
    *count = 0;
    while (*list && copy) {
        char *comma = strchr(copy, ',');
        if (comma) *comma = 0;
        CKKS_ASSERT(*count < 8);
        out[(*count)++] = copy;
        copy = comma ? comma + 1 : NULL;
    }
    return out;
}

Onnx__Node *onnx_builder_node(onnx_builder *b, const char *domain, const char *type, const char *name,
                              const char *inputs, const char *outputs) {
    Onnx__Node *n = take(b, 1, sizeof *n);
    onnx__node__init(n);
    n->domain = text(b, domain), n->op_type = text(b, type), n->name = text(b, name);
    n->input = names(b, &n->n_input, inputs);
    n->output = names(b, &n->n_output, outputs);
    n->attribute = take(b, 8, sizeof(void *));
    CKKS_ASSERT(b->graph.n_node < ITEMS_MAX);
    b->nodes[b->graph.n_node++] = n;
    return n;
}

static Onnx__Attribute *attribute(onnx_builder *b, Onnx__Node *node, const char *name) {
    Onnx__Attribute *a = take(b, 1, sizeof *a);
    onnx__attribute__init(a);
    a->name = text(b, name);
    CKKS_ASSERT(node->n_attribute < 8);
    node->attribute[node->n_attribute++] = a;
    return a;
}

void onnx_builder_int(onnx_builder *b, Onnx__Node *node, const char *name, int64_t value) {
    Onnx__Attribute *a = attribute(b, node, name);
    a->has_i = 1, a->i = value;
}

void onnx_builder_text(onnx_builder *b, Onnx__Node *node, const char *name, const char *value) {
    Onnx__Attribute *a = attribute(b, node, name);
    a->has_s = 1;
    a->s = (ProtobufCBinaryData){strlen(value), (uint8_t *)text(b, value)};
}

void onnx_builder_ints(onnx_builder *b, Onnx__Node *node, const char *name, size_t count,
                       const int64_t *values) {
    Onnx__Attribute *a = attribute(b, node, name);
    a->ints = take(b, count, sizeof *a->ints), a->n_ints = count;
    memcpy(a->ints, values, count * sizeof *values);
}

void onnx_builder_float(onnx_builder *b, Onnx__Node *node, const char *name, float value) {
    Onnx__Attribute *a = attribute(b, node, name);
    a->has_f = 1, a->f = value;
}

void onnx_builder_floats(onnx_builder *b, Onnx__Node *node, const char *name, size_t count,
                         const float *values) {
    Onnx__Attribute *a = attribute(b, node, name);
    a->floats = take(b, count, sizeof *a->floats), a->n_floats = count;
    memcpy(a->floats, values, count * sizeof *values);
}

Onnx__Model *onnx_builder_model(onnx_builder *b) {
    return &b->model;
}

uint8_t *onnx_builder_finish(onnx_builder *b, size_t *size) {
    *size = onnx__model__get_packed_size(&b->model);
    uint8_t *bytes = malloc(*size ? *size : 1);
    CKKS_ASSERT(bytes != NULL);
    onnx__model__pack(&b->model, bytes);
    return bytes;
}
