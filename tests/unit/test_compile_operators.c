/*
 * Every node model of libonnx-testdata whose operators we know, through the clear-text interpreter and, where
 * its input is a real number, through the compiler's graph: both against the outputs that the package has.
 */
#include "client/compile/ir.h"
#include "client/compile/lower.h"
#include "client/compile/model.h"
#include "client/compile/operator.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
// cmocka wants these first
#include <cmocka.h>

#define TESTDATA  "/usr/share/libonnx-testdata/data"
#define PORTS_MAX 64u

/* ---- a model and one set of inputs and outputs ---- */

typedef struct node_case {
    const char *name;
    Onnx__Model *model;
    uint32_t input_count, output_count;
    Onnx__Tensor *inputs[PORTS_MAX], *outputs[PORTS_MAX];
    char *input_names[PORTS_MAX];
    char skip[512]; /* why not, or "" */
} node_case;

typedef struct tally {
    const char *type;
    uint32_t clear, encrypted, client, refused, skipped;
} tally;
static tally tallies[512];
static uint32_t tally_count;

static tally *tally_of(const char *domain, const char *type) {
    const operator_row *row = operator_find(domain, type);
    const char *name = row ? row->type : type;
    for (uint32_t i = 0; i < tally_count; i++)
        if (strcmp(tallies[i].type, name) == 0) return &tallies[i];
    assert_true(row && tally_count < 512);
    tallies[tally_count].type = name;
    return &tallies[tally_count++];
}

static uint8_t *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    *size = 0;
    if (!file) return NULL;
    uint8_t *bytes = malloc(1u << 24);
    assert_non_null(bytes);
    *size = fread(bytes, 1, 1u << 24, file);
    assert_true(*size < 1u << 24);
    fclose(file);
    return bytes;
}

static Onnx__Tensor *read_tensor(const char *folder, const char *kind, uint32_t number) {
    char path[512];
    size_t size;
    snprintf(path, sizeof path, "%s/%s_%u.pb", folder, kind, number);
    uint8_t *bytes = read_file(path, &size);
    if (!bytes) return NULL;
    Onnx__Tensor *t = onnx__tensor__unpack(NULL, size, bytes);
    free(bytes);
    return t;
}

/* a tensor that we read, or the reason why not */
static void check_tensor(node_case *c, const Onnx__Tensor *t, const char *what) {
    static const char *const names[] = {"undefined", "float",  "uint8",     "int8",       "uint16",  "int16",
                                        "int32",     "int64",  "string",    "bool",       "float16", "double",
                                        "uint32",    "uint64", "complex64", "complex128", "bfloat16"};
    if (c->skip[0]) return;
    if (!t) {
        snprintf(c->skip, sizeof c->skip, "%s is no tensor", what);
    } else if (t->data_type < 0 || t->data_type > 16) {
        snprintf(c->skip, sizeof c->skip, "%s has elements of type %d", what, t->data_type);
    } else if (t->data_type == 8 || t->data_type == 14 || t->data_type == 15 || t->data_type == 0) {
        snprintf(c->skip, sizeof c->skip, "%s has elements of type %s", what, names[t->data_type]);
    } else {
        arena memory = {0};
        ckks_error err = {0};
        tensor read;
        if (tensor_from_message(&read, t, &memory, what, &err) != CKKS_OK)
            snprintf(c->skip, sizeof c->skip, "%s: %s", what, err.message);
        arena_fini(&memory);
    }
}

static bool is_initialiser(const Onnx__Graph *g, const char *name) {
    for (size_t i = 0; i < g->n_initializer; i++)
        if (strcmp(g->initializer[i]->name, name) == 0) return true;
    return false;
}

/* Version 7 moved broadcasting of these; what else the old files of the package hold means the same in 7. */
static void pretend_version_7(const node_case *c) {
    static const char *const moved[] = {"Add", "Sub",   "Mul",  "Div",     "Pow",     "PRelu",   "And",
                                        "Or",  "Equal", "Less", "Greater", "Dropout", "Upsample"};
    const Onnx__Graph *g = c->model->graph;
    for (size_t n = 0; n < g->n_node; n++)
        for (size_t i = 0; i < sizeof moved / sizeof *moved; i++)
            if (strcmp(g->node[n]->op_type, moved[i]) == 0) return;
    for (size_t i = 0; i < c->model->n_opset_import; i++)
        if (!c->model->opset_import[i]->domain || !*c->model->opset_import[i]->domain)
            if (c->model->opset_import[i]->version < 7) c->model->opset_import[i]->version = 7;
}

static bool case_load(node_case *c, const char *folder, const char *name) {
    char path[400];
    size_t size;
    *c = (node_case){.name = name};
    snprintf(path, sizeof path, "%s/%s/model.onnx", folder, name);
    uint8_t *bytes = read_file(path, &size);
    if (!bytes) return false;
    c->model = onnx__model__unpack(NULL, size, bytes);
    free(bytes);
    assert_non_null(c->model);
    pretend_version_7(c);
    const Onnx__Graph *g = c->model->graph;
    snprintf(path, sizeof path, "%s/%s/test_data_set_0", folder, name);
    assert_true(g->n_input <= PORTS_MAX && g->n_output <= PORTS_MAX);
    c->output_count = (uint32_t)g->n_output;
    for (size_t i = 0; i < g->n_input; i++) {
        if (is_initialiser(g, g->input[i]->name)) continue;
        const uint32_t number = c->input_count++;
        c->input_names[number] = g->input[i]->name;
        c->inputs[number] = read_tensor(path, "input", number);
        check_tensor(c, c->inputs[number], "an input");
    }
    for (uint32_t i = 0; i < c->output_count; i++) {
        c->outputs[i] = read_tensor(path, "output", i);
        check_tensor(c, c->outputs[i], "an output");
    }
    return true;
}

static void case_free(node_case *c) {
    for (uint32_t i = 0; i < c->input_count; i++)
        if (c->inputs[i]) onnx__tensor__free_unpacked(c->inputs[i], NULL);
    for (uint32_t i = 0; i < c->output_count; i++)
        if (c->outputs[i]) onnx__tensor__free_unpacked(c->outputs[i], NULL);
    onnx__model__free_unpacked(c->model, NULL);
}

/* ---- the same model with its inputs as initialisers, and one of them as a flat row ---- */

typedef struct rewritten {
    arena memory;
    Onnx__Model model;
    Onnx__Graph graph;
    uint8_t *bytes;
    size_t size;
} rewritten;

static Onnx__ValueInfo *row_info(arena *memory, const char *name, int64_t count) {
    Onnx__ValueInfo *info = arena_take(memory, 1, sizeof *info);
    Onnx__Type *type = arena_take(memory, 1, sizeof *type);
    Onnx__TensorType *inner = arena_take(memory, 1, sizeof *inner);
    Onnx__Shape *shape = arena_take(memory, 1, sizeof *shape);
    onnx__value_info__init(info);
    onnx__type__init(type);
    onnx__tensor_type__init(inner);
    onnx__shape__init(shape);
    shape->dim = arena_take(memory, 2, sizeof(void *)), shape->n_dim = 2;
    for (int i = 0; i < 2; i++) {
        shape->dim[i] = arena_take(memory, 1, sizeof **shape->dim);
        onnx__dimension__init(shape->dim[i]);
        shape->dim[i]->has_dim_value = 1, shape->dim[i]->dim_value = i ? count : 1;
    }
    inner->has_elem_type = 1, inner->elem_type = 1, inner->shape = shape;
    type->tensor_type = inner;
    info->type = type, info->name = arena_text(memory, name);
    return info;
}

static int64_t element_count(const Onnx__Tensor *t) {
    int64_t count = 1;
    for (size_t i = 0; i < t->n_dims; i++) count *= t->dims[i];
    return count;
}

static Onnx__Node *row_node(arena *memory, const char *type, const char *from, const char *constant,
                            const char *output) {
    Onnx__Node *node = arena_take(memory, 1, sizeof *node);
    onnx__node__init(node);
    node->op_type = arena_text(memory, type), node->name = arena_text(memory, "the row's shape");
    node->input = arena_take(memory, 2, sizeof(char *)), node->n_input = 2;
    node->input[0] = arena_text(memory, from), node->input[1] = arena_text(memory, constant);
    node->output = arena_take(memory, 1, sizeof(char *)), node->n_output = 1;
    node->output[0] = arena_text(memory, output);
    return node;
}

static Onnx__Tensor *row_tensor(arena *memory, const char *name, int32_t type, size_t count) {
    Onnx__Tensor *t = arena_take(memory, 1, sizeof *t);
    onnx__tensor__init(t);
    t->name = arena_text(memory, name);
    t->has_data_type = 1, t->data_type = type;
    t->dims = arena_take(memory, 1, sizeof *t->dims), t->n_dims = 1;
    t->dims[0] = (int64_t)count;
    return t;
}

/* row -> minus row, so that something is computed -> the input's shape and name */
static void add_row(rewritten *r, const Onnx__Graph *g, const Onnx__Tensor *input, const char *name) {
    Onnx__Tensor *shape = row_tensor(&r->memory, "its shape", ELEMENT_INT64, input->n_dims);
    Onnx__Tensor *sign = row_tensor(&r->memory, "minus one", ELEMENT_FLOAT, 1);
    shape->int64_data = input->dims, shape->n_int64_data = input->n_dims;
    sign->float_data = arena_take(&r->memory, 1, sizeof(float)), sign->n_float_data = 1;
    sign->float_data[0] = -1;
    r->graph.initializer[r->graph.n_initializer++] = shape;
    r->graph.initializer[r->graph.n_initializer++] = sign;
    r->graph.node = arena_take(&r->memory, g->n_node + 2, sizeof(void *));
    r->graph.node[0] = row_node(&r->memory, "Mul", "the row", "minus one", "the sign");
    r->graph.node[1] = row_node(&r->memory, "Reshape", "the sign", "its shape", name);
    memcpy(r->graph.node + 2, g->node, g->n_node * sizeof(void *));
    r->graph.n_node = g->n_node + 2;
    r->graph.n_output = 1;
}

/* `encrypted`: the input that stays one, or UINT32_MAX */
static void rewrite(rewritten *r, const node_case *c, uint32_t encrypted) {
    char *own_names[PORTS_MAX];
    const Onnx__Graph *g = c->model->graph;
    *r = (rewritten){.model = *c->model, .graph = *g};
    r->model.graph = &r->graph;
    r->graph.initializer = arena_take(&r->memory, g->n_initializer + c->input_count + 2, sizeof(void *));
    if (g->n_initializer) memcpy(r->graph.initializer, g->initializer, g->n_initializer * sizeof(void *));
    for (uint32_t i = 0; i < c->input_count; i++) {
        if (i == encrypted) continue;
        own_names[i] = c->inputs[i]->name;
        c->inputs[i]->name = c->input_names[i]; /* borrowed until packed */
        r->graph.initializer[r->graph.n_initializer++] = c->inputs[i];
    }
    const int64_t count = encrypted == UINT32_MAX ? 1 : element_count(c->inputs[encrypted]);
    r->graph.input = arena_take(&r->memory, 1, sizeof(void *)), r->graph.n_input = 1;
    r->graph.input[0] = row_info(&r->memory, "the row", count);
    if (encrypted != UINT32_MAX) add_row(r, g, c->inputs[encrypted], c->input_names[encrypted]);
    r->size = onnx__model__get_packed_size(&r->model);
    r->bytes = malloc(r->size);
    assert_non_null(r->bytes);
    onnx__model__pack(&r->model, r->bytes);
    for (uint32_t i = 0; i < c->input_count; i++)
        if (i != encrypted) c->inputs[i]->name = own_names[i];
}

static void rewritten_free(rewritten *r) {
    free(r->bytes);
    arena_fini(&r->memory);
}

/* ---- comparison ---- */

static double worst_seen;
static uint32_t failure_count; /* all are shown */

static void compare(const char *name, const char *how, const double *got, uint32_t count,
                    const Onnx__Tensor *message) {
    arena memory = {0};
    ckks_error err = {0};
    tensor expected;
    assert_int_equal(tensor_from_message(&expected, message, &memory, "output", &err), CKKS_OK);
    const bool is_half = message->data_type == ELEMENT_FLOAT16 || message->data_type == ELEMENT_BFLOAT16;
    bool is_wrong = count != expected.count;
    if (is_wrong)
        print_message("  WRONG %s, %s: %u elements, the package has %u\n", name, how, count, expected.count);
    for (uint32_t i = 0; i < count && !is_wrong; i++) {
        const double off = fabs(got[i] - expected.data[i]) / (1 + fabs(expected.data[i]));
        if (!(off <= (is_half ? 1e-2 : 2e-5))) {
            is_wrong = true;
            print_message("  WRONG %s, %s: element %u is %.9g, the package has %.9g\n", name, how, i, got[i],
                          expected.data[i]);
        } else if (!is_half)
            worst_seen = fmax(worst_seen, off);
    }
    failure_count += is_wrong;
    arena_fini(&memory);
}

static bool run_clear(node_case *c) {
    rewritten r;
    onnx_model *m;
    ckks_error err = {0};
    rewrite(&r, c, UINT32_MAX);
    const ckks_status rc = model_read(&m, r.bytes, r.size, &err);
    if (rc != CKKS_OK) snprintf(c->skip, sizeof c->skip, "%s: %s", err.field, err.message);
    for (uint32_t i = 0; rc == CKKS_OK && i < c->output_count && !c->skip[0]; i++) {
        const tensor *t = &m->values[model_lookup(m, c->model->graph->output[i]->name)].constant;
        if (!t->data)
            snprintf(c->skip, sizeof c->skip, "output %u is not computed", i);
        else
            compare(c->name, "in the clear", t->data, t->count, c->outputs[i]);
    }
    onnx_model_destroy(rc == CKKS_OK ? m : NULL);
    rewritten_free(&r);
    return !c->skip[0];
}

typedef enum outcome { OUTCOME_NONE, OUTCOME_ENCRYPTED, OUTCOME_CLIENT, OUTCOME_REFUSED } outcome;

static outcome run_lowered(const lowered_model *lowered, const node_case *c, const double *row) {
    arena memory = {0};
    ir_graph g = lowered->graph;
    ckks_error err = {0};
    ir_run run;
    ir_count_uses(&g);
    assert_int_equal(ir_run_init(&run, &g, &memory, &err), CKKS_OK);
    if (ir_run_row(&run, &g, row, &err) != CKKS_OK) {
        failure_count++;
        print_message("  WRONG %s: %s\n", c->name, err.message);
    }
    const bool is_client = lowered->steps.link != POST_NONE || lowered->steps.has_label;
    if (!is_client)
        compare(c->name, "encrypted", run.values[g.output], g.nodes[g.output].count, c->outputs[0]);
    arena_fini(&memory);
    return is_client ? OUTCOME_CLIENT : OUTCOME_ENCRYPTED;
}

/* the first input that holds real numbers, as an encrypted one */
static outcome run_encrypted(const node_case *c) {
    rewritten r;
    onnx_model *m;
    lowered_model lowered;
    arena memory = {0};
    ckks_error err = {0};
    tensor row;
    outcome out = OUTCOME_REFUSED;
    uint32_t encrypted = 0;
    while (encrypted < c->input_count && c->inputs[encrypted]->data_type != ELEMENT_FLOAT &&
           c->inputs[encrypted]->data_type != ELEMENT_DOUBLE)
        encrypted++;
    if (encrypted == c->input_count || element_count(c->inputs[encrypted]) == 0) return OUTCOME_NONE;
    rewrite(&r, c, encrypted);
    ckks_status rc = model_read(&m, r.bytes, r.size, &err);
    if (rc == CKKS_OK) rc = model_lower(&lowered, m, &memory, &err);
    if (rc == CKKS_OK) {
        assert_int_equal(tensor_from_message(&row, c->inputs[encrypted], &memory, "row", &err), CKKS_OK);
        for (uint32_t i = 0; i < row.count; i++) row.data[i] = -row.data[i];
        out = run_lowered(&lowered, c, row.data);
    } else if (rc == CKKS_UNSUPPORTED && m && !m->refusal_count) {
        out = OUTCOME_NONE; /* a constant, whatever the input is */
    } else if (rc != CKKS_UNSUPPORTED) {
        print_message("    %s: %s: %s\n", c->name, err.field, err.message);
    }
    onnx_model_destroy(m);
    arena_fini(&memory);
    rewritten_free(&r);
    return out;
}

/* ---- all of them ---- */

static bool is_known(const Onnx__Model *m) {
    for (size_t i = 0; i < m->graph->n_node; i++)
        if (!operator_find(m->graph->node[i]->domain ? m->graph->node[i]->domain : "",
                           m->graph->node[i]->op_type))
            return false;
    return m->graph->n_node > 0;
}

static void run_case(const char *folder, const char *name) {
    node_case c;
    outcome out = OUTCOME_NONE;
    /* windows of signals: their expected numbers were made with 3.1415 for pi */
    if (strstr(name, "window") && !strstr(name, "with_window")) return;
    if (!case_load(&c, folder, name)) return;
    if (is_known(c.model)) {
        if (!c.skip[0] && run_clear(&c)) out = run_encrypted(&c);
        if (c.skip[0]) print_message("  skipped %s: %s\n", name, c.skip);
        for (size_t i = 0; i < c.model->graph->n_node; i++) {
            const Onnx__Node *node = c.model->graph->node[i];
            tally *t = tally_of(node->domain ? node->domain : "", node->op_type);
            t->clear += !c.skip[0];
            t->skipped += c.skip[0] != 0;
            t->encrypted += out == OUTCOME_ENCRYPTED;
            t->client += out == OUTCOME_CLIENT;
            t->refused += out == OUTCOME_REFUSED;
        }
    }
    case_free(&c);
}

/* Operators that the package is too old for, or whose node models have another step behind: tested with
 * models of our own (test_compile_opsets, test_compile_exporters, test_compile_model, the tests of tables).
 */
static bool is_tested_elsewhere(const operator_row *row) {
    static const char *const names[] = {"Gelu",
                                        "Erfc",
                                        "Mish",
                                        "LpPool",
                                        "GlobalLpPool",
                                        "GroupNormalization",
                                        "RMSNormalization",
                                        "Trilu",
                                        "HannWindow",
                                        "HammingWindow",
                                        "BlackmanWindow",
                                        "IsNaN",
                                        "LpNormalization",
                                        "IsInf"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(row->type, names[i]) == 0) return true;
    return *row->domain != 0;
}

/* what the table says of an operator is what was seen */
static void check_rows(void) {
    const operator_row *row;
    for (uint32_t i = 0; (row = operator_row_at(i)); i++) {
        if (is_tested_elsewhere(row)) continue;
        const tally *t = tally_of(row->domain, row->type);
        const bool is_client = row->flags & OPERATOR_CLIENT_SIDE;
        const bool is_constant = row->flags & (OPERATOR_CONSTANT_ONLY | OPERATOR_SHAPE_ONLY);
        const bool is_shown = is_client     ? t->client > 0 || strncmp(row->type, "ArgM", 4) == 0
                              : is_constant ? true
                                            : t->encrypted + t->client > 0;
        if (!t->clear || !is_shown)
            fail_msg("%s: %u in the clear, %u encrypted, %u by the client", row->type, t->clear, t->encrypted,
                     t->client);
        if (row->flags & OPERATOR_REFUSED) assert_true(t->refused > 0);
    }
}

static void the_table_of_operators_is_the_one_in_the_documentation(void **state) {
    (void)state;
    char *table = NULL;
    size_t size, page_size;
    FILE *to = open_memstream(&table, &size);
    compile_operators_print(to, false);
    fclose(to);
    uint8_t *page = read_file("client/compile/README.md", &page_size);
    assert_non_null(page);
    page[page_size] = 0;
    if (!strstr((const char *)page, table))
        fail_msg("client/compile/README.md has another table than `ckksctl compile --operators` prints");
    free(page);
    free(table);
}

static void node_models_give_the_outputs_of_the_package(void **state) {
    (void)state;
    const char *const more = getenv("ONNX_NODE_MODELS"); /* of a later version of onnx, for instance */
    const char *const folders[] = {TESTDATA "/node", TESTDATA "/simple", TESTDATA "/pytorch-converted",
                                   TESTDATA "/pytorch-operator", more ? more : TESTDATA "/node"};
    for (size_t f = 0; f < (more ? 5 : 4); f++) {
        struct dirent **names;
        const int count = scandir(folders[f], &names, NULL, alphasort);
        if (count < 0) fail_msg("%s is not there: make deps installs libonnx-testdata", folders[f]);
        for (int i = 0; i < count; i++) {
            if (names[i]->d_name[0] != '.') run_case(folders[f], names[i]->d_name);
            free(names[i]);
        }
        free(names);
    }
    print_message("  %-24s %8s %9s %8s %8s %8s\n", "operator", "clear", "encrypted", "client", "refused",
                  "skipped");
    for (uint32_t i = 0; i < tally_count; i++)
        print_message("  %-24s %8u %9u %8u %8u %8u\n", tallies[i].type, tallies[i].clear,
                      tallies[i].encrypted, tallies[i].client, tallies[i].refused, tallies[i].skipped);
    print_message("  worst relative difference %.1e\n", worst_seen);
    assert_int_equal(failure_count, 0);
    check_rows();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(node_models_give_the_outputs_of_the_package),
        cmocka_unit_test(the_table_of_operators_is_the_one_in_the_documentation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
