#include "kernels/program/workload.h"

#include "kernels/program/graph_internal.h"
#include "kernels/program/workload_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void report(const workload_progress *progress, const char *stage, uint64_t done, uint64_t total) {
    if (progress && progress->report) progress->report(progress->context, stage, done, total);
}

/* ---- keys: the plan's list is the key table ---- */

static ckks_status find_key(uint32_t *out, const plan *p, uint32_t kind, uint32_t element, ckks_error *err) {
    for (uint32_t i = 0; i < p->key_count; i++)
        if (p->keys[i].kind == kind && p->keys[i].galois_element == element) {
            *out = i;
            return CKKS_OK;
        }
    return ckks_error_set(err, CKKS_INTERNAL, "keys", "no key of kind %u, element %u", kind, element);
}

/* Galois keys are sorted by element, between relinearisation and public key. */
static ckks_status find_step(galois_step *out, const plan *p, uint32_t element, ckks_error *err) {
    uint32_t low = 0, high = p->key_count;
    *out = (galois_step){element, 0};
    if (element == 1) return CKKS_OK;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const key_requirement *k = &p->keys[middle];
        const bool is_below = k->kind < KEY_GALOIS || (k->kind == KEY_GALOIS && k->galois_element < element);
        if (is_below)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < p->key_count && p->keys[low].kind == KEY_GALOIS && p->keys[low].galois_element == element) {
        out->key = low;
        return CKKS_OK;
    }
    return ckks_error_set(err, CKKS_INTERNAL, "keys", "no Galois key of element %u", element);
}

static ckks_status find_steps(galois_step **out, const plan *p, const int32_t *steps, uint32_t count,
                              ckks_error *err) {
    ckks_status rc = CKKS_OK;
    galois_step *found = calloc(count, sizeof *found);
    if (!found) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "steps", "no memory for %u steps", count);
    for (uint32_t i = 0; rc == CKKS_OK && i < count; i++)
        rc = find_step(&found[i], p, galois_element_rotate(p->params->log_n, steps[i]), err);
    if (rc == CKKS_OK) *out = found, found = NULL;
    free(found);
    return rc;
}

/* ---- operations ---- */

static ckks_status prepare_transform(workload *w, prepared_operation *o, const plan_operation *op,
                                     ckks_error *err) {
    ckks_status rc;
    const plan *p = w->p;
    const plan_transform *t = &p->transforms[op->transform];
    galois_step *babies = NULL, *giants = NULL;
    linear_transform_term *terms = calloc(t->term_count, sizeof *terms);
    if (!terms) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "terms", "no memory for %u terms", t->term_count);
        goto out;
    }
    if ((rc = find_steps(&babies, p, t->baby_steps, t->baby_count, err)) != CKKS_OK) goto out;
    if ((rc = find_steps(&giants, p, t->giant_steps, t->giant_count, err)) != CKKS_OK) goto out;
    for (uint32_t i = 0; i < t->term_count; i++)
        terms[i] = (linear_transform_term){t->terms[i].giant, t->terms[i].baby, w->words[t->terms[i].plain]};
    rc = linear_transform_create(&o->transform, w->dev, w->context, p->values[op->a].level, babies,
                                 t->baby_count, giants, t->giant_count, terms, t->term_count,
                                 op->with_rescale, p->plains[t->terms[0].plain].scale, err);
out:
    free(terms);
    free(babies);
    free(giants);
    return rc;
}

static ckks_status prepare_rotations(workload *w, prepared_operation *o, const plan_operation *op,
                                     ckks_error *err) {
    galois_step *steps = NULL;
    ckks_status rc = find_steps(&steps, w->p, op->steps, op->step_count, err);
    if (rc == CKKS_OK && op->kind == PLAN_ROTATE_HOISTED) {
        rc = hoisted_rotations_create(&o->rotations, w->dev, w->context, steps, op->step_count, err);
    } else if (rc == CKKS_OK) {
        o->steps = steps, steps = NULL;
        o->step_count = op->step_count;
    }
    free(steps);
    return rc;
}

static ckks_status prepare_conjugate(workload *w, prepared_operation *o, ckks_error *err) {
    o->step_count = 1;
    if (!(o->steps = calloc(1, sizeof *o->steps)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "steps", "no memory for a step");
    return find_step(o->steps, w->p, galois_element_conjugate(w->p->params->log_n), err);
}

static ckks_status prepare_chebyshev(workload *w, prepared_operation *o, const plan_operation *op,
                                     ckks_error *err) {
    const plan_polynomial *polynomial = &w->p->polynomials[op->polynomial];
    const plan_value *in = &w->p->values[op->a], *out = &w->p->values[op->first_output];
    uint32_t level;
    ckks_status rc = chebyshev_plan_create(&o->polynomial, w->p->params, polynomial->coefficients,
                                           polynomial->degree, in->level, in->scale, out->scale, err);
    if (rc == CKKS_OK && chebyshev_plan_relin_level(o->polynomial, &level))
        rc = find_key(&o->key, w->p, KEY_RELINEARISATION, 0, err);
    return rc;
}

/* the bias lies behind all limbs of the weights */
static void prepare_matrix(const workload *w, prepared_operation *o, const plan_operation *op) {
    const plan_matrix *m = &w->p->matrices[op->matrix];
    o->matrix = w->words[w->p->plain_count + op->matrix];
    if (m->bias)
        o->bias = o->matrix +
                  ((uint64_t)w->matrix_level[op->matrix] + 1) * m->row_count * (uint64_t)m->column_count;
}

static ckks_status prepare_operation(workload *w, uint32_t index, ckks_error *err) {
    const plan_operation *op = &w->p->operations[index];
    prepared_operation *o = &w->operations[index];
    switch ((plan_operation_kind)op->kind) {
    case PLAN_ADD_PLAIN:
    case PLAN_MULTIPLY_PLAIN:
        o->plain = (ckks_value){w->descriptors[op->plain].signature, w->words[op->plain]};
        return CKKS_OK;
    case PLAN_RELINEARISE:
        return find_key(&o->key, w->p, KEY_RELINEARISATION, 0, err);
    case PLAN_ROTATE:
    case PLAN_ROTATE_HOISTED:
    case PLAN_INNER_SUM:
        return prepare_rotations(w, o, op, err);
    case PLAN_CONJUGATE:
        return prepare_conjugate(w, o, err);
    case PLAN_LINEAR_TRANSFORM:
        return prepare_transform(w, o, op, err);
    case PLAN_CHEBYSHEV:
        return prepare_chebyshev(w, o, op, err);
    case PLAN_MATRIX_PRODUCT:
        prepare_matrix(w, o, op);
        return CKKS_OK;
    case PLAN_RERANDOMISE:
        w->uses_randomness = true;
        return find_key(&o->key, w->p, KEY_PUBLIC, 0, err);
    default:
        return CKKS_OK;
    }
}

static ckks_status prepare_operations(workload *w, const workload_progress *progress, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    const plan *p = w->p;
    for (uint32_t k = 0; rc == CKKS_OK && k < p->operation_count; k++) {
        const plan_operation *op = &p->operations[k];
        ckks_error inner = {0};
        char field[sizeof inner.field];
        report(progress, "prepare", k, p->operation_count);
        for (uint32_t i = 0; i < op->output_count; i++) w->last_use[op->first_output + i] = k;
        w->last_use[op->a] = k;
        if (op->kind == PLAN_ADD || op->kind == PLAN_SUBTRACT || op->kind == PLAN_MULTIPLY)
            w->last_use[op->b] = k;
        rc = prepare_operation(w, k, &inner);
        if (rc == CKKS_OK) continue;
        snprintf(field, sizeof field, "operation %u (%s, %.24s)", k, plan_operation_name(op->kind),
                 op->source);
        ckks_error_set(err, rc, field, "%s%s%s", inner.field, inner.field[0] ? ": " : "", inner.message);
    }
    return rc;
}

/* ---- the whole ---- */

static ckks_status allocate_tables(workload *w, ckks_error *err) {
    const plan *p = w->p;
    const size_t bindings = (size_t)w->binding_count + 1; /* never of size 0: NULL means failure */
    w->descriptors = calloc(bindings, sizeof *w->descriptors);
    w->digests = calloc(bindings, sizeof *w->digests);
    w->words = calloc(bindings, sizeof *w->words);
    w->matrix_level = calloc((size_t)p->matrix_count + 1, sizeof *w->matrix_level);
    w->matrix_level_min = calloc((size_t)p->matrix_count + 1, sizeof *w->matrix_level_min);
    w->operations = calloc(p->operation_count, sizeof *w->operations);
    w->last_use = calloc(p->value_count, sizeof *w->last_use);
    w->inputs = calloc(p->input_count, sizeof *w->inputs);
    w->outputs = calloc(p->output_count, sizeof *w->outputs);
    if (!w->descriptors || !w->digests || !w->words || !w->matrix_level || !w->matrix_level_min ||
        !w->operations || !w->last_use || !w->inputs || !w->outputs)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "workload", "no memory for a workload");
    return CKKS_OK;
}

static uint64_t fill_signatures(value_signature *out, const workload *w, const uint32_t *numbers,
                                uint32_t count) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        const plan_value *v = &w->p->values[numbers ? numbers[i] : i];
        value_signature_ciphertext(&out[i], w->p->params, v->component_count, v->level, v->scale,
                                   device_id(w->dev));
        out[i].batch_count = v->batch_count;
        out[i].bytes *= v->batch_count; /* at most 2^16 * 3 * 80 * 2^20 */
        bytes += out[i].bytes;
    }
    return bytes;
}

static ckks_status account(workload *w, ckks_error *err) {
    graph_program_config config;
    program_layout layout = {0};
    workload_memory *m = &w->memory;
    workload_program_config(w, &config);
    const ckks_status rc = program_layout_create(&layout, &config, err);
    if (rc != CKKS_OK) return rc;
    m->arena_bytes = workspace_plan_bytes(w->workspace);
    m->arena_unshared_bytes = workspace_plan_bytes_live(w->workspace);
    m->program_bytes = layout.device_bytes;
    m->staging_bytes = layout.host_bytes;
    m->capture_bytes = layout.reference_bytes;
    for (uint32_t i = 0; i < w->p->key_count; i++)
        m->keys_bytes += key_resident_word_count(w->p->params, &w->p->keys[i]) * sizeof(uint64_t);
    program_layout_destroy(&layout);
    return CKKS_OK;
}

ckks_status workload_prepare(workload **out, device *dev, const plan *p, const workload_progress *progress,
                             ckks_error *err) {
    ckks_status rc;
    graph_program_config config;
    *out = NULL;
    if ((rc = plan_check(p, err)) != CKKS_OK) return rc;
    workload *w = calloc(1, sizeof *w);
    if (!w) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "workload", "no memory for a workload");
    w->dev = dev;
    w->p = p;
    w->binding_count = p->plain_count + p->matrix_count;
    pthread_mutex_init(&w->self_test_lock, NULL);
    if ((rc = allocate_tables(w, err)) != CKKS_OK) goto out;
    if ((rc = context_create(&w->context, p->params, err)) != CKKS_OK) goto out;
    if ((rc = device_tables_acquire(dev, &w->tables, w->context, err)) != CKKS_OK) goto out;
    if ((rc = workload_encode(w, progress, err)) != CKKS_OK) goto out;
    if ((rc = prepare_operations(w, progress, err)) != CKKS_OK) goto out;
    w->memory.inputs_bytes = fill_signatures(w->inputs, w, NULL, p->input_count);
    w->memory.outputs_bytes = fill_signatures(w->outputs, w, p->outputs, p->output_count);
    report(progress, "plan", 0, 1);
    workload_program_config(w, &config);
    if ((rc = graph_plan_workspace(&w->workspace, dev, &config, err)) != CKKS_OK) goto out;
    if ((rc = account(w, err)) != CKKS_OK) goto out;
    report(progress, "plan", 1, 1);
    *out = w, w = NULL;
out:
    workload_destroy(w);
    return rc;
}

static void destroy_operation(prepared_operation *o) {
    hoisted_rotations_destroy(o->rotations);
    linear_transform_destroy(o->transform);
    chebyshev_plan_destroy(o->polynomial);
    free(o->steps);
}

void workload_destroy(workload *w) {
    if (!w) return;
    workload_self_test_end(w);
    workspace_plan_destroy(w->workspace);
    for (uint32_t k = 0; w->operations && k < w->p->operation_count; k++)
        destroy_operation(&w->operations[k]);
    const ckks_status rc = binding_set_destroy(w->bindings, NULL);
    CKKS_ASSERT(rc == CKKS_OK); /* no program may be attached */
    device_tables_release(w->dev, w->tables);
    context_destroy(w->context);
    free(w->descriptors);
    free(w->digests);
    free(w->words);
    free(w->matrix_level);
    free(w->matrix_level_min);
    free(w->operations);
    free(w->last_use);
    free(w->inputs);
    free(w->outputs);
    pthread_mutex_destroy(&w->self_test_lock);
    free(w);
}

void workload_memory_account(const workload *w, workload_memory *out) {
    *out = w->memory;
}
const ckks_context *workload_context(const workload *w) {
    return w->context;
}
const plan *workload_plan(const workload *w) {
    return w->p;
}
binding_set *workload_bindings(workload *w) {
    return w->bindings;
}

void workload_digests(const workload *w, uint8_t (*digests)[32]) {
    if (w->binding_count) memcpy(digests, w->digests, (size_t)w->binding_count * 32);
}

void workload_program_config(workload *w, graph_program_config *out) {
    *out = (graph_program_config){
        .context = w->context,
        .tables = w->tables,
        .callable = workload_callable,
        .callable_context = w,
        .inputs = w->inputs,
        .input_count = w->p->input_count,
        .outputs = w->outputs,
        .output_count = w->p->output_count,
        .keys = w->p->keys,
        .key_count = w->p->key_count,
        .bindings = w->bindings,
        .workspace = w->workspace,
        .uses_randomness = w->uses_randomness,
    };
}
