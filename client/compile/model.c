/*
 * Reading a model: parse, number the values, check that nodes come in order, look operators up, and send one
 * row of zeros through the graph to learn every shape.
 */
#include "client/compile/model.h"

#include "client/compile/external.h"
#include "client/compile/operator.h"
#include "client/compile/table.h"
#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "proto/package.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the model")
/* parsed, a file's messages take more than its bytes: many small nodes are the worst honest case */
#define PARSE_FACTOR  24u
#define PARSE_MINIMUM (4u << 20)

/* ---- names ---- */

static uint32_t name_hash(const char *name) {
    uint32_t h = 2166136261u;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 16777619u;
    return h;
}

/* the bucket that holds `name`, or the empty one where it belongs */
static uint32_t name_bucket(const onnx_model *m, const char *name) {
    const uint32_t mask = m->bucket_count - 1;
    uint32_t at = name_hash(name) & mask;
    while (m->buckets[at] != MODEL_NONE && strcmp(m->values[m->buckets[at]].name, name) != 0)
        at = (at + 1) & mask;
    return at;
}

uint32_t model_lookup(const onnx_model *m, const char *name) {
    return m->buckets[name_bucket(m, name)];
}

/* adds a value; a name that exists already is an error naming it */
static ckks_status value_define(onnx_model *m, uint32_t *out, const char *name, uint32_t producer,
                                ckks_error *err) {
    CKKS_ASSERT(m->value_count < m->value_capacity);
    const uint32_t at = name_bucket(m, name);
    if (m->buckets[at] != MODEL_NONE)
        return ckks_error_set(err, CKKS_MALFORMED, name, "this value is defined twice");
    model_value *v = &m->values[m->value_count];
    *v = (model_value){.name = name, .producer = producer, .is_defined = true};
    m->buckets[at] = *out = m->value_count++;
    return CKKS_OK;
}

static ckks_status names_init(onnx_model *m, ckks_error *err) {
    const Onnx__Graph *g = m->proto->graph;
    uint64_t capacity = g->n_initializer + g->n_input;
    for (size_t i = 0; i < g->n_node; i++) capacity += g->node[i]->n_output;
    if (g->n_node > MODEL_NODES_MAX || capacity > 4u * MODEL_NODES_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "graph", "%zu nodes, over %u", g->n_node, MODEL_NODES_MAX);
    m->value_capacity = (uint32_t)capacity;
    m->bucket_count = 16;
    while (m->bucket_count < 2 * capacity) m->bucket_count *= 2;
    m->values = arena_take(&m->memory, capacity, sizeof *m->values);
    m->buckets = arena_take(&m->memory, m->bucket_count, sizeof *m->buckets);
    m->nodes = arena_take(&m->memory, g->n_node, sizeof *m->nodes);
    m->outputs = arena_take(&m->memory, g->n_output, sizeof *m->outputs);
    if (!m->values || !m->buckets || !m->nodes || !m->outputs) return NO_MEMORY(err);
    for (uint32_t i = 0; i < m->bucket_count; i++) m->buckets[i] = MODEL_NONE;
    return CKKS_OK;
}

/* ---- attributes ---- */

const Onnx__Attribute *node_attribute(const model_node *node, const char *name) {
    for (size_t i = 0; i < node->proto->n_attribute; i++) {
        const Onnx__Attribute *a = node->proto->attribute[i];
        if (a->name && strcmp(a->name, name) == 0) return a;
    }
    return NULL;
}
int64_t node_int(const model_node *node, const char *name, int64_t otherwise) {
    const Onnx__Attribute *a = node_attribute(node, name);
    return a && a->has_i ? a->i : otherwise;
}
double node_float(const model_node *node, const char *name, double otherwise) {
    const Onnx__Attribute *a = node_attribute(node, name);
    return a && a->has_f ? (double)a->f : otherwise;
}
const uint8_t *node_text(const model_node *node, const char *name, size_t *size) {
    const Onnx__Attribute *a = node_attribute(node, name);
    *size = a && a->has_s ? a->s.len : 0;
    return a && a->has_s ? a->s.data : NULL;
}

ckks_status node_error(const model_node *node, ckks_error *err, const char *format, ...) {
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return ckks_error_set(err, CKKS_MALFORMED, node->label, "%s: %s", node->type, text);
}

/* ---- refusals ---- */

ckks_status model_refuse(onnx_model *m, const model_node *node, const char *reason, const char *way_out,
                         ckks_error *err) {
    for (uint32_t i = 0; i < m->refusal_count; i++)
        if (strcmp(m->refusals[i].node, node->label) == 0 && strcmp(m->refusals[i].type, node->type) == 0)
            return CKKS_OK;
    if (m->refusal_count == m->refusal_capacity) {
        const uint32_t capacity = m->refusal_capacity ? 2 * m->refusal_capacity : 8;
        compile_refusal *grown = arena_take(&m->memory, capacity, sizeof *grown);
        if (!grown) return NO_MEMORY(err);
        if (m->refusal_count) memcpy(grown, m->refusals, m->refusal_count * sizeof *grown);
        m->refusals = grown, m->refusal_capacity = capacity;
    }
    compile_refusal *r = &m->refusals[m->refusal_count];
    r->node = node->label;
    r->type = node->type;
    r->reason = arena_text(&m->memory, reason);
    r->way_out = arena_text(&m->memory, way_out);
    if (!r->reason || !r->way_out) return NO_MEMORY(err);
    m->refusal_count++;
    return CKKS_OK;
}

ckks_status model_refusal_status(const onnx_model *m, ckks_error *err) {
    if (!m->refusal_count) return CKKS_OK;
    char text[256];
    size_t used = 0;
    uint32_t named = 0;
    for (; named < m->refusal_count && used < sizeof text; named++) {
        const size_t room = sizeof text - used;
        const int length = snprintf(text + used, room, "%s%s (%s)", named ? ", " : "",
                                    m->refusals[named].node, m->refusals[named].type);
        if (length < 0 || (size_t)length >= room) break;
        used += (size_t)length;
    }
    text[used < sizeof text ? used : sizeof text - 1] = 0;
    return ckks_error_set(err, CKKS_UNSUPPORTED, m->refusals[0].node,
                          "%u operator%s cannot run encrypted: %s%s", m->refusal_count,
                          m->refusal_count == 1 ? "" : "s", text,
                          named < m->refusal_count ? " and others" : "");
}

/* ---- the graph ---- */

static ckks_status read_opsets(onnx_model *m, ckks_error *err) {
    for (size_t i = 0; i < m->proto->n_opset_import; i++) {
        const Onnx__OperatorSet *set = m->proto->opset_import[i];
        const char *domain = set->domain ? set->domain : "";
        if (!*domain || strcmp(domain, "ai.onnx") == 0) m->opset = set->version;
        if (strcmp(domain, "ai.onnx.ml") == 0) m->opset_ml = set->version;
    }
    if (m->opset < 0 || m->opset > 1000)
        return ckks_error_set(err, CKKS_MALFORMED, "opset_import", "version %lld", (long long)m->opset);
    /* a file of ai.onnx.ml operators alone need not name the other set */
    if (m->opset && m->opset < 7)
        return ckks_error_set(err, CKKS_UNSUPPORTED_VERSION, "opset_import",
                              "operator set %lld: convert the model to 7 or newer (onnx.version_converter)",
                              (long long)m->opset);
    return CKKS_OK;
}

/* other weights make another model */
static void digest_more(onnx_model *m, const uint8_t *bytes, size_t size) {
    uint8_t both[2 * SHA256_BYTES];
    memcpy(both, m->digest, SHA256_BYTES);
    sha256(both + SHA256_BYTES, bytes, size);
    sha256(m->digest, both, sizeof both);
}

ckks_status model_tensor(tensor *out, onnx_model *m, const Onnx__Tensor *message, const char *what,
                         ckks_error *err) {
    uint8_t *bytes;
    size_t size;
    if (message->data_location != 1 || !m->folder)
        return tensor_from_message(out, message, &m->memory, what, err);
    ckks_status rc =
        external_read(&bytes, &size, m->folder, message, EXTERNAL_BYTES_MAX - m->external_bytes, what, err);
    if (rc != CKKS_OK) return rc;
    m->external_bytes += size;
    m->memory.bytes_max += 8 * (uint64_t)size; /* a double for each byte */
    digest_more(m, bytes, size);
    rc = tensor_from_bytes(out, message, bytes, size, &m->memory, what, err);
    free(bytes);
    return rc;
}

static ckks_status read_initialisers(onnx_model *m, ckks_error *err) {
    const Onnx__Graph *g = m->proto->graph;
    if (g->n_sparse_initializer)
        return ckks_error_set(err, CKKS_UNSUPPORTED, "sparse_initializer", "sparse weights: make them dense");
    for (size_t i = 0; i < g->n_initializer; i++) {
        const Onnx__Tensor *t = g->initializer[i];
        ckks_status rc;
        uint32_t value = 0;
        if (!t->name || !*t->name)
            return ckks_error_set(err, CKKS_MALFORMED, "initializer", "number %zu has no name", i);
        if ((rc = value_define(m, &value, t->name, MODEL_NONE, err)) != CKKS_OK) return rc;
        m->values[value].is_text = t->data_type == ELEMENT_STRING;
        rc = m->values[value].is_text
                 ? model_text_tensor(&m->values[value].constant, m, t, &m->memory, t->name, err)
                 : model_tensor(&m->values[value].constant, m, t, t->name, err);
        if (rc != CKKS_OK) return rc;
        m->weight_count += m->values[value].constant.count;
    }
    return CKKS_OK;
}

static ckks_status read_inputs(onnx_model *m, ckks_error *err) {
    const Onnx__Graph *g = m->proto->graph;
    ckks_status rc;
    m->inputs = arena_take(&m->memory, g->n_input, sizeof *m->inputs);
    if (!m->inputs) return NO_MEMORY(err);
    for (size_t i = 0; i < g->n_input; i++) {
        const Onnx__ValueInfo *info = g->input[i];
        uint32_t value = 0;
        if (!info->name || !*info->name)
            return ckks_error_set(err, CKKS_MALFORMED, "input", "number %zu has no name", i);
        if (model_lookup(m, info->name) != MODEL_NONE)
            continue; /* an initialiser, listed as IR version 3 did */
        if ((rc = value_define(m, &value, info->name, MODEL_NONE, err)) != CKKS_OK) return rc;
        if ((rc = model_add_input(m, info, value, err)) != CKKS_OK) return rc;
    }
    if (!m->input_count) return ckks_error_set(err, CKKS_MALFORMED, "graph", "it has no input");
    return model_finish_inputs(m, err);
}

static ckks_status read_node_inputs(onnx_model *m, model_node *node, ckks_error *err) {
    const Onnx__Node *p = node->proto;
    for (size_t k = 0; k < p->n_input; k++) {
        node->inputs[k] = MODEL_NONE;
        if (!*p->input[k]) continue;
        if ((node->inputs[k] = model_lookup(m, p->input[k])) == MODEL_NONE)
            return node_error(node, err,
                              "its input '%s' is not defined before it (missing initialiser, nodes out "
                              "of order, or a cycle)",
                              p->input[k]);
        m->values[node->inputs[k]].consumer_count++;
    }
    return CKKS_OK;
}

static ckks_status read_node_outputs(onnx_model *m, model_node *node, uint32_t number, ckks_error *err) {
    const Onnx__Node *p = node->proto;
    for (size_t k = 0; k < p->n_output; k++) {
        const char *name = p->output[k];
        ckks_status rc;
        if (!*name && !(name = arena_format(&m->memory, "%s output %zu", node->label, k)))
            return NO_MEMORY(err);
        if ((rc = value_define(m, &node->outputs[k], name, number, err)) != CKKS_OK) return rc;
    }
    return CKKS_OK;
}

static ckks_status check_arity(const model_node *node, ckks_error *err) {
    const operator_row *op = node->op;
    if (node->input_count < op->input_min || node->input_count > op->input_max)
        return node_error(node, err, "has %u inputs", node->input_count);
    for (uint32_t k = 0; k < op->input_min; k++)
        if (node->inputs[k] == MODEL_NONE) return node_error(node, err, "input %u is left out", k);
    if (node->output_count > op->output_max)
        return node_error(node, err, "has %u outputs", node->output_count);
    return CKKS_OK;
}

static ckks_status read_node(onnx_model *m, uint32_t number, ckks_error *err) {
    const Onnx__Node *p = m->proto->graph->node[number];
    model_node *node = &m->nodes[number];
    const char *domain = p->domain && strcmp(p->domain, "ai.onnx") != 0 ? p->domain : "";
    ckks_status rc;
    node->proto = p;
    if (!p->op_type || !p->n_output)
        return ckks_error_set(err, CKKS_MALFORMED, p->name ? p->name : "node",
                              "node %u has no type or no output", number);
    node->label = p->name && *p->name ? p->name : *p->output[0] ? p->output[0] : p->op_type;
    node->type = *domain ? arena_format(&m->memory, "%s.%s", domain, p->op_type) : p->op_type;
    node->op = operator_find(domain, p->op_type);
    node->input_count = (uint32_t)p->n_input;
    node->output_count = (uint32_t)p->n_output;
    node->inputs = arena_take(&m->memory, p->n_input, sizeof *node->inputs);
    node->outputs = arena_take(&m->memory, p->n_output, sizeof *node->outputs);
    if (!node->type || !node->inputs || !node->outputs) return NO_MEMORY(err);
    if ((rc = read_node_inputs(m, node, err)) != CKKS_OK) return rc;
    if ((rc = read_node_outputs(m, node, number, err)) != CKKS_OK) return rc;
    m->node_count = number + 1;
    if (node->op) return check_arity(node, err);
    const char *reason, *way_out;
    operator_way_out(node->type, &reason, &way_out);
    return model_refuse(m, node, reason, way_out, err);
}

static ckks_status read_outputs(onnx_model *m, ckks_error *err) {
    const Onnx__Graph *g = m->proto->graph;
    if (!g->n_output) return ckks_error_set(err, CKKS_MALFORMED, "graph", "it has no output");
    for (size_t i = 0; i < g->n_output; i++) {
        const char *name = g->output[i]->name ? g->output[i]->name : "";
        const uint32_t value = model_lookup(m, name);
        if (value == MODEL_NONE)
            return ckks_error_set(err, CKKS_MALFORMED, name, "this output of the graph is defined nowhere");
        m->values[value].is_graph_output = true;
        m->outputs[m->output_count++] = value;
    }
    return CKKS_OK;
}

/* a constant made of constants, or of shapes alone */
static bool is_constant_node(const onnx_model *m, const model_node *node) {
    if (!node->op) return false;
    if (node->op->flags & OPERATOR_SHAPE_ONLY) return true;
    for (uint32_t k = 0; k < node->input_count; k++)
        if (node->inputs[k] != MODEL_NONE && !m->values[node->inputs[k]].constant.data) return false;
    return true;
}

uint64_t model_work_max(const onnx_model *m) {
    return OPERATOR_WORK_MAX + OPERATOR_WORK_PER_WEIGHT * m->weight_count;
}

/* One row of zeros shows every shape; constants are folded as the walk passes them. */
static ckks_status learn_shapes(onnx_model *m, ckks_error *err) {
    ckks_status rc;
    uint64_t work_left = model_work_max(m);
    double *zeros = arena_take(&m->memory, m->input_shape.count, sizeof *zeros);
    tensor *values = arena_take(&m->memory, m->value_count, sizeof *values);
    if (!zeros || !values) return NO_MEMORY(err);
    if ((rc = model_evaluate_start(m, zeros, values, &m->memory, err)) != CKKS_OK) return rc;
    for (uint32_t n = 0; n < m->node_count; n++) {
        const model_node *node = &m->nodes[n];
        rc = model_evaluate_node(m, node, false, &work_left, values, &m->memory, err);
        if (rc != CKKS_OK) return rc;
        for (uint32_t k = 0; is_constant_node(m, node) && k < node->output_count; k++)
            m->values[node->outputs[k]].constant = values[node->outputs[k]];
    }
    for (uint32_t i = 0; i < m->value_count; i++) m->values[i].sample = values[i];
    return CKKS_OK;
}

static ckks_status read_graph(onnx_model *m, ckks_error *err) {
    ckks_status rc;
    if (!m->proto->graph) return ckks_error_set(err, CKKS_MALFORMED, "graph", "the file has no graph");
    if ((rc = read_opsets(m, err)) != CKKS_OK) return rc;
    if ((rc = names_init(m, err)) != CKKS_OK) return rc;
    if ((rc = model_read_texts(m, err)) != CKKS_OK) return rc;
    if ((rc = read_initialisers(m, err)) != CKKS_OK) return rc;
    if ((rc = read_inputs(m, err)) != CKKS_OK) return rc;
    for (uint32_t n = 0; n < m->proto->graph->n_node; n++)
        if ((rc = read_node(m, n, err)) != CKKS_OK) return rc;
    if ((rc = read_outputs(m, err)) != CKKS_OK) return rc;
    if ((rc = model_infer_texts(m, err)) != CKKS_OK) return rc;
    m->is_tabulating = true;
    if ((rc = learn_shapes(m, err)) != CKKS_OK) return rc;
    rc = table_build(m, err);
    m->is_tabulating = false;
    return rc;
}

ckks_status model_read(onnx_model **out, const void *bytes, size_t size, ckks_error *err) {
    return model_read_in(out, bytes, size, NULL, err);
}

ckks_status model_read_in(onnx_model **out, const void *bytes, size_t size, const char *folder,
                          ckks_error *err) {
    ckks_status rc;
    ProtobufCMessage *message = NULL;
    *out = NULL;
    if (size > MODEL_FILE_BYTES_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "model", "%zu bytes, over %llu", size,
                              (unsigned long long)MODEL_FILE_BYTES_MAX);
    onnx_model *m = calloc(1, sizeof *m);
    if (!m) return NO_MEMORY(err);
    m->score_value = MODEL_NONE;
    m->folder = folder;
    /* weights take twice their bytes; broadcasting must not make much of little */
    m->memory.bytes_max = (UINT64_C(256) << 20) + UINT64_C(16) * size;
    sha256(m->digest, bytes, size);
    rc = message_unpack(&message, &onnx__model__descriptor, bytes, size, size * PARSE_FACTOR + PARSE_MINIMUM,
                        "ONNX model", err);
    m->proto = (Onnx__Model *)message;
    if (rc == CKKS_OK) rc = read_graph(m, err);
    m->folder = NULL; /* the caller's */
    if (rc == CKKS_OK) *out = m, m = NULL;
    onnx_model_destroy(m);
    return rc;
}

ckks_status model_read_file(onnx_model **out, const char *path, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    uint8_t *bytes = NULL;
    size_t size = 0, capacity = 1u << 16;
    *out = NULL;
    FILE *file = fopen(path, "rb");
    if (!file)
        return ckks_error_set(err, errno == ENOENT ? CKKS_NOT_FOUND : CKKS_IO, path, "%s", strerror(errno));
    while (rc == CKKS_OK) {
        capacity *= 2;
        uint8_t *grown = capacity <= 4 * MODEL_FILE_BYTES_MAX ? realloc(bytes, capacity) : NULL;
        if (!grown) {
            rc = ckks_error_set(err, size > MODEL_FILE_BYTES_MAX ? CKKS_TOO_LARGE : CKKS_RESOURCE_EXHAUSTED,
                                path, "cannot hold the file");
            break;
        }
        bytes = grown;
        size += fread(bytes + size, 1, capacity - size, file);
        if (ferror(file)) rc = ckks_error_set(err, CKKS_IO, path, "%s", strerror(errno));
        if (size < capacity) break;
    }
    fclose(file);
    char *folder = strdup(path);
    if (!folder && rc == CKKS_OK) rc = NO_MEMORY(err);
    if (rc == CKKS_OK) {
        char *slash = strrchr(folder, '/');
        if (slash) slash[slash == folder] = 0;
        rc = model_read_in(out, bytes, size, slash ? folder : ".", err);
    }
    free(folder);
    free(bytes);
    return rc;
}

void onnx_model_destroy(onnx_model *model) {
    if (!model) return;
    if (model->proto) message_free(&model->proto->base);
    arena_fini(&model->memory);
    free(model);
}

uint32_t onnx_model_input_count(const onnx_model *model) {
    return model->input_shape.count;
}
