/* Measuring a cost model: programs of a few operations, and the non-negative costs that explain them best. */
#include "client/ctl/cost.h"
#include "client/ctl/parts.h"

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MATRIX_SIDE 16u
#define STREAMED                                                                                             \
    4u /* transforms in one probe, so that diagonals come from memory, as those of large layers do */
#define SCALE         0x1p26
#define CACHE_VERSION "cost 5"
/* a GPU's largest probes: rotations at once, at most, and what their keys, and their diagonals, may take */
#define CROWD_MAX    128u
#define CROWD_SMALL  32u
#define CROWD_BYTES  ((uint64_t)256 << 20)
#define CROWD_GIANTS 4u
#define TERMS_MAX    (CROWD_MAX * CROWD_GIANTS)

/* ---- probes: small programs of one parameter set ---- */

typedef struct probe {
    plan plan;
    plan_value values[1 + STREAMED];
    plan_operation operations[STREAMED];
    uint32_t outputs[STREAMED];
    plan_plain plain;
    plan_plain plains[TERMS_MAX];
    plan_transform transforms[STREAMED];
    plan_transform_term terms[TERMS_MAX];
    int32_t babies[CROWD_MAX], giants[CROWD_GIANTS];
    plan_matrix matrix;
    key_requirement *keys;
    double ns;
} probe;

typedef struct probes {
    const ckks_params *params;
    bool is_insecure, is_for_gpu, has_rotations, has_products, has_matrices;
    uint32_t count;
    probe *list;  /* [COST_PROBES_MAX] */
    double *ones; /* [N/2] */
    double *weights;
    key_requirement *keys;
    uint32_t key_count;
} probes;

_Static_assert(16 * STREAMED <= TERMS_MAX, "streamed transforms have room");

static const int32_t one_step[] = {1}, two_steps[] = {1, 2};

/* a program of one operation on one ciphertext */
static probe *begin(probes *all, uint32_t kind, uint32_t level, double scale_in, double scale_out,
                    uint32_t level_out) {
    probe *q = &all->list[all->count];
    q->values[0] = (plan_value){level, 2, 1, scale_in};
    q->values[1] = (plan_value){level_out, kind == PLAN_SQUARE ? 3 : 2, 1, scale_out};
    q->operations[0] = (plan_operation){
        .kind = kind, .first_output = 1, .output_count = 1, .source = "probe", .constant_scale = 1};
    q->outputs[0] = 1;
    q->plan = (plan){.params = all->params,
                     .is_insecure = all->is_insecure,
                     .input_count = 1,
                     .value_count = 2,
                     .values = q->values,
                     .operation_count = 1,
                     .operations = q->operations,
                     .output_count = 1,
                     .outputs = q->outputs};
    return q;
}

/* keys and checks; a program that does not fit these parameters is left out */
static ckks_status finish(probes *all, probe *q, ckks_error *err) {
    ckks_error misfit = {0};
    uint32_t count = 0;
    ckks_status rc = plan_key_requirements(&q->plan, &q->keys, &count, &misfit);
    if (rc == CKKS_RESOURCE_EXHAUSTED) return ckks_error_set(err, rc, "", "no memory for a probe");
    q->plan.keys = q->keys, q->plan.key_count = count;
    if (rc == CKKS_OK) rc = plan_check(&q->plan, &misfit);
    if (rc != CKKS_OK) {
        free(q->keys);
        *q = (probe){0};
        return CKKS_OK;
    }
    rc = client_requirements_add(&all->keys, &all->key_count, q->keys, count, err);
    if (rc == CKKS_OK) all->count++;
    return rc;
}

static ckks_status add_simple(probes *all, uint32_t level, ckks_error *err) {
    const double prime = (double)all->params->prime[level];
    probe *q = begin(all, PLAN_ADD, level, SCALE, SCALE, level);
    ckks_status rc = finish(all, q, err);
    if (rc != CKKS_OK || !level) return rc;
    q = begin(all, PLAN_RESCALE, level, SCALE * SCALE, SCALE * SCALE / prime, level - 1);
    if ((rc = finish(all, q, err)) != CKKS_OK) return rc;
    q = begin(all, PLAN_MULTIPLY_PLAIN, level, SCALE, SCALE * SCALE, level);
    q->plain = (plan_plain){.slots = all->ones, .slot_count = 1, .level = level, .scale = SCALE};
    q->plan.plains = &q->plain, q->plan.plain_count = 1;
    return finish(all, q, err);
}

static ckks_status add_product(probes *all, uint32_t level, ckks_error *err) {
    if (!level) return CKKS_OK;
    probe *q = begin(all, PLAN_SQUARE, level, SCALE, SCALE * SCALE, level);
    q->values[2] = (plan_value){level - 1, 2, 1, SCALE * SCALE / (double)all->params->prime[level]};
    q->operations[1] = (plan_operation){.kind = PLAN_RELINEARISE,
                                        .a = 1,
                                        .first_output = 2,
                                        .output_count = 1,
                                        .with_rescale = true,
                                        .source = "probe"};
    q->plan.value_count = 3, q->plan.operation_count = 2, q->outputs[0] = 2;
    return finish(all, q, err);
}

/* `count` transforms of one value, each of so many baby steps (one of them no rotation) and giant steps (the
 * first of them none; `is_batch`: none of them, but a result each), with diagonals of its own */
static ckks_status add_transform(probes *all, uint32_t level, uint32_t baby_count, uint32_t giant_count,
                                 uint32_t count, bool is_batch, ckks_error *err) {
    probe *q = begin(all, PLAN_LINEAR_TRANSFORM, level, SCALE, SCALE * 0x1p20, level);
    const uint32_t each = baby_count * giant_count;
    CKKS_ASSERT(baby_count <= CROWD_MAX && giant_count <= CROWD_GIANTS && each * count <= TERMS_MAX);
    for (uint32_t i = 0; i < baby_count; i++) q->babies[i] = (int32_t)i;
    for (uint32_t i = 0; i < giant_count; i++) q->giants[i] = is_batch ? 0 : (int32_t)(i * baby_count);
    for (uint32_t i = 0; i < each * count; i++) {
        q->plains[i] = (plan_plain){
            .slots = all->ones, .slot_count = 1, .level = level, .with_p = true, .scale = 0x1p20};
        q->terms[i] = (plan_transform_term){i % each / baby_count, i % baby_count, i};
    }
    for (uint32_t k = 0; k < count; k++) {
        q->transforms[k] = (plan_transform){.baby_steps = q->babies,
                                            .giant_steps = q->giants,
                                            .baby_count = baby_count,
                                            .giant_count = giant_count,
                                            .terms = q->terms + k * each,
                                            .term_count = each};
        q->values[1 + k] = q->values[1];
        if (is_batch) q->values[1 + k].batch_count = giant_count;
        q->operations[k] = q->operations[0];
        q->operations[k].transform = k;
        q->operations[k].first_output = q->outputs[k] = 1 + k;
    }
    q->plan.value_count = 1 + count;
    q->plan.operation_count = q->plan.output_count = count;
    q->plan.plains = q->plains, q->plan.plain_count = each * count;
    q->plan.transforms = q->transforms, q->plan.transform_count = count;
    return finish(all, q, err);
}

/* how many rotations at once fit */
static uint32_t crowd_size(const ckks_params *params, uint32_t level) {
    const key_requirement key = {KEY_GALOIS, galois_element_rotate(params->log_n, 1), level};
    const uint64_t key_bytes = key_resident_word_count(params, &key) * sizeof(uint64_t);
    const uint64_t plain_bytes = (level + 1 + params->p_count) * params_n(params) * sizeof(uint64_t);
    const uint64_t by_keys = CROWD_BYTES / key_bytes, by_plains = CROWD_BYTES / (CROWD_GIANTS * plain_bytes);
    const uint64_t fits = by_keys < by_plains ? by_keys : by_plains;
    return fits > CROWD_MAX ? CROWD_MAX : fits < 8 ? 8 : (uint32_t)fits;
}

/* many rotations and diagonals in each launch; two numbers of them where they are many, which small rings are
 * used with */
static ckks_status add_crowd(probes *all, uint32_t level, ckks_error *err) {
    const uint32_t most = crowd_size(all->params, level), some = most > CROWD_SMALL ? CROWD_SMALL : most;
    ckks_status rc = add_transform(all, level, some, 1, 1, false, err);
    if (rc == CKKS_OK) rc = add_transform(all, level, some, CROWD_GIANTS, 1, false, err);
    if (rc != CKKS_OK || most < 2 * some) return rc;
    rc = add_transform(all, level, most, 1, 1, false, err);
    return rc == CKKS_OK ? add_transform(all, level, most, CROWD_GIANTS, 1, true, err) : rc;
}

static ckks_status add_rotations(probes *all, uint32_t level, ckks_error *err) {
    probe *q = begin(all, PLAN_ROTATE, level, SCALE, SCALE, level);
    q->operations[0].steps = one_step, q->operations[0].step_count = 1;
    ckks_status rc = finish(all, q, err);
    if (rc != CKKS_OK) return rc;
    q = begin(all, PLAN_ROTATE_HOISTED, level, SCALE, SCALE, level);
    q->operations[0].steps = two_steps, q->operations[0].step_count = 2;
    q->operations[0].output_count = 2;
    q->values[2] = q->values[1], q->plan.value_count = 3, q->outputs[0] = 2;
    if ((rc = finish(all, q, err)) != CKKS_OK) return rc;
    if ((rc = add_transform(all, level, 4, 1, 1, false, err)) != CKKS_OK) return rc;
    /* keys of large rings take hundreds of megabytes */
    const uint32_t giant_count = all->params->log_n < 15 ? 4 : 2;
    if ((rc = add_transform(all, level, 4, giant_count, 1, false, err)) != CKKS_OK) return rc;
    if ((rc = add_transform(all, level, 4, giant_count, STREAMED, false, err)) != CKKS_OK) return rc;
    return all->is_for_gpu ? add_crowd(all, level, err) : CKKS_OK;
}

static ckks_status add_matrix(probes *all, uint32_t level, ckks_error *err) {
    probe *q = begin(all, PLAN_MATRIX_PRODUCT, level, SCALE, SCALE * 0x1p20, level);
    q->values[0].batch_count = q->values[1].batch_count = MATRIX_SIDE;
    q->matrix = (plan_matrix){
        .weights = all->weights, .row_count = MATRIX_SIDE, .column_count = MATRIX_SIDE, .scale = 0x1p20};
    q->plan.matrices = &q->matrix, q->plan.matrix_count = 1;
    return finish(all, q, err);
}

static ckks_status add_level(probes *all, uint32_t level, ckks_error *err) {
    ckks_status rc = add_simple(all, level, err);
    if (rc == CKKS_OK && all->has_products) rc = add_product(all, level, err);
    if (rc == CKKS_OK && all->has_rotations) rc = add_rotations(all, level, err);
    if (rc == CKKS_OK && all->has_matrices) rc = add_matrix(all, level, err);
    return rc;
}

/* what the program does at its highest level, in the middle and near the end */
static ckks_status probes_make(probes *all, const plan *p, uint32_t kind, ckks_error *err) {
    const uint32_t top = p->values[0].level;
    *all = (probes){.params = p->params, .is_insecure = p->is_insecure, .is_for_gpu = kind == DEVICE_CUDA};
    for (uint32_t i = 0; i < p->key_count; i++) {
        all->has_rotations = all->has_rotations || p->keys[i].kind == KEY_GALOIS;
        all->has_products = all->has_products || p->keys[i].kind == KEY_RELINEARISATION;
    }
    all->has_matrices = p->matrix_count != 0;
    all->list = calloc(COST_PROBES_MAX, sizeof *all->list);
    all->ones = calloc(params_slot_count_max(p->params), sizeof *all->ones);
    all->weights = calloc(MATRIX_SIDE * MATRIX_SIDE, sizeof *all->weights);
    if (!all->list || !all->ones || !all->weights)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for probes");
    all->ones[0] = 1;
    for (uint32_t i = 0; i < MATRIX_SIDE * MATRIX_SIDE; i++) all->weights[i] = 0.25 + 0.001 * i;
    ckks_status rc = add_level(all, top, err);
    if (rc == CKKS_OK && top > 1) rc = add_level(all, (top + 1) / 2, err);
    if (rc == CKKS_OK && top > 3) rc = add_level(all, 1, err);
    return rc;
}

static void probes_fini(probes *all) {
    for (uint32_t i = 0; all->list && i < all->count; i++) free(all->list[i].keys);
    free(all->list);
    free(all->ones);
    free(all->weights);
    free(all->keys);
}

/* ---- fitting ---- */

/* what a device of this kind has a cost for */
static bool has_kernel(const probes *all, int kernel) {
    if (kernel == COST_CALL) return !all->is_for_gpu;
    return all->is_for_gpu || (kernel != COST_LIST && kernel != COST_STAGE && kernel != COST_REPLAY);
}

static void name_probe(char name[48], const plan *p) {
    static const char *const kinds[PLAN_RERANDOMISE + 1] = {
        [PLAN_ADD] = "add",
        [PLAN_RESCALE] = "rescale",
        [PLAN_MULTIPLY_PLAIN] = "multiply",
        [PLAN_SQUARE] = "square",
        [PLAN_ROTATE] = "rotate",
        [PLAN_ROTATE_HOISTED] = "rotate hoisted",
        [PLAN_LINEAR_TRANSFORM] = "transform",
        [PLAN_MATRIX_PRODUCT] = "matrix",
    };
    const plan_operation *o = &p->operations[0];
    const plan_transform *t = p->transform_count ? &p->transforms[o->transform] : NULL;
    int used = snprintf(name, 48, "%s level %u", kinds[o->kind], p->values[0].level);
    if (t)
        snprintf(name + used, 48 - (size_t)used, " %u x %u x %u%s", p->operation_count, t->giant_count,
                 t->baby_count, plan_transform_has_results(t) ? " batch" : "");
    else if (o->step_count)
        snprintf(name + used, 48 - (size_t)used, " %u", o->step_count);
}

/* Non-negative least squares of relative errors, one cost after another until nothing moves. */
static void fit(cost_model *out, const probes *all) {
    double passes[COST_PROBES_MAX][COST_KERNELS];
    *out = (cost_model){.probe_count = all->count};
    for (uint32_t i = 0; i < all->count; i++) {
        const plan *p = &all->list[i].plan;
        cost_probe *kept = &out->probes[i];
        cost_count(kept->passes, p, 0, p->operation_count);
        name_probe(kept->name, p);
        kept->ns = all->list[i].ns;
        for (int k = 0; k < COST_KERNELS; k++)
            passes[i][k] = has_kernel(all, k) ? kept->passes[k] / kept->ns : 0;
    }
    for (int round = 0; round < 20000; round++)
        for (int k = 0; k < COST_KERNELS; k++) {
            double top = 0, bottom = 0;
            for (uint32_t i = 0; i < all->count; i++) {
                double rest = 1;
                for (int m = 0; m < COST_KERNELS; m++)
                    if (m != k) rest -= passes[i][m] * out->pass_ns[m];
                top += rest * passes[i][k];
                bottom += passes[i][k] * passes[i][k];
            }
            out->pass_ns[k] = bottom > 0 ? fmax(top / bottom, 0) : 0;
        }
    for (uint32_t i = 0; i < all->count; i++) {
        double sum = 0;
        for (int k = 0; k < COST_KERNELS; k++) sum += passes[i][k] * out->pass_ns[k];
        out->fit = fmax(out->fit, fabs(sum - 1));
    }
}

static ckks_status measure(cost_model *out, const plan *p, uint32_t kind, const ctl_options *options,
                           ckks_error *err) {
    probes all;
    plan_clock clock = {0};
    ctl_bar bar = {0};
    ctl_bar_begin(&bar, options, "cost model", false);
    ckks_status rc = probes_make(&all, p, kind, err);
    if (rc == CKKS_OK) rc = plan_clock_open(&clock, kind, p->params, all.keys, all.key_count, err);
    /* a CPU's cores change their speed for seconds: there the other way round once more */
    const uint32_t total = kind == DEVICE_CUDA ? all.count : 2 * all.count;
    for (uint32_t i = 0; i < total && rc == CKKS_OK; i++) {
        probe *q = &all.list[i < all.count ? i : total - 1 - i];
        double ns = 0;
        rc = plan_clock_time(&ns, &clock, &q->plan, 4, 0.02, err);
        if (i < all.count || ns < q->ns) q->ns = ns;
        ctl_bar_update(&bar, i + 1, total);
    }
    ctl_bar_end(&bar);
    if (rc == CKKS_OK) fit(out, &all);
    if (rc == CKKS_OK) out->is_unsteady = clock.is_unsteady;
    plan_clock_close(&clock);
    probes_fini(&all);
    return rc;
}

/* ---- the cache: one small text file for each machine, device and parameter set ---- */

static void cache_path(char path[CTL_PATH_MAX], const plan *p, uint32_t kind) {
    const char *base = getenv("XDG_CACHE_HOME"), *home = ctl_home();
    char machine[128], key[512], hex[65];
    uint8_t digest[SHA256_BYTES];
    const int length = snprintf(key, sizeof key, "%s %s %u %u %u %s", CACHE_VERSION CKKSD_VERSION,
                                bench_machine(machine), kind, p->values[0].level, p->matrix_count != 0,
                                hex_encode(hex, p->params->id, CKKS_PARAMETER_ID_BYTES));
    sha256(digest, key, (size_t)length);
    hex_encode(hex, digest, sizeof digest);
    if (base && *base == '/')
        snprintf(path, CTL_PATH_MAX, "%s/ckksctl/cost-%.16s", base, hex);
    else
        snprintf(path, CTL_PATH_MAX, "%s/.cache/ckksctl/cost-%.16s", home ? home : "", hex);
}

static bool read_number(double *out, FILE *from) {
    char line[64], *end;
    if (!fgets(line, sizeof line, from)) return false;
    *out = strtod(line, &end);
    return end != line && *end == '\n' && isfinite(*out) && *out >= 0;
}

static bool cache_read(cost_model *out, const char *path) {
    char line[64];
    FILE *from = fopen(path, "re");
    if (!from) return false;
    *out = (cost_model){.fit = 0};
    bool is_good = fgets(line, sizeof line, from) && strcmp(line, CACHE_VERSION "\n") == 0;
    is_good = is_good && read_number(&out->fit, from);
    for (int k = 0; k < COST_KERNELS && is_good; k++) is_good = read_number(&out->pass_ns[k], from);
    fclose(from);
    return is_good;
}

static void cache_write(const cost_model *model, const char *path) {
    char text[512], folder[CTL_PATH_MAX];
    int used = snprintf(text, sizeof text, CACHE_VERSION "\n%.9g\n", model->fit);
    for (int k = 0; k < COST_KERNELS; k++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%.9g\n", model->pass_ns[k]);
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(folder, 0700) != 0 && errno != EEXIST) return;
        *slash = '/';
    }
    ckks_error ignored = {0};
    file_write(path, (const uint8_t *)text, (size_t)used, 0600, true, &ignored);
}

bool cost_model_cached(cost_model *out, const plan *p, uint32_t kind) {
    char path[CTL_PATH_MAX];
    cache_path(path, p, kind);
    return cache_read(out, path);
}

ckks_status cost_model_get(cost_model *out, const plan *p, uint32_t kind, bool anew,
                           const ctl_options *options, ckks_error *err) {
    char path[CTL_PATH_MAX];
    cache_path(path, p, kind);
    if (!anew && cache_read(out, path)) return CKKS_OK;
    const ckks_status rc = measure(out, p, kind, options, err);
    if (rc == CKKS_OK) cache_write(out, path);
    return rc;
}
