#include "tests/support/tiny_package.h"

#include "kernels/program/workload.h"
#include "tests/support/plan_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

const double tiny_weights[TINY_SLOTS] = {0.5, -0.25, 0.75, 1.0};

static void weights_of(double w[TINY_SLOTS], uint32_t variant) {
    for (uint32_t i = 0; i < TINY_SLOTS; i++) w[i] = tiny_weights[i] + 0.125 * variant;
}

void tiny_package_expect(double y[TINY_SLOTS], const double x[TINY_SLOTS], uint32_t variant) {
    double w[TINY_SLOTS];
    weights_of(w, variant);
    for (uint32_t i = 0; i < TINY_SLOTS; i++) {
        const uint32_t next = (i + 1) % TINY_SLOTS;
        const double sum = w[i] * x[i] + w[next] * x[next];
        y[i] = sum * sum;
    }
}

static void must(ckks_status rc, const ckks_error *err) {
    char text[512];
    if (rc == CKKS_OK) return;
    fprintf(stderr, "tiny package: %s: %s\n", ckks_status_name(rc), ckks_error_print(err, text, sizeof text));
    abort();
}

/* The digest by the means of the product: any word-equal path gives the same. */
static void self_test_digest(uint8_t digest[32], const plan *p) {
    ckks_error err = {0};
    device *dev = NULL;
    workload *w = NULL;
    graph_slot *slot = NULL;
    graph_program *program = NULL;
    graph_program_config config;
    workload_memory memory;
    const device_config wanted = {.kind = DEVICE_CPU, .threads = 1};
    must(device_open(&dev, &wanted, &err), &err);
    must(workload_prepare(&w, dev, p, NULL, &err), &err);
    workload_memory_account(w, &memory);
    workload_program_config(w, &config);
    must(graph_slot_create(&slot, dev, memory.arena_bytes, &err), &err);
    must(graph_program_create(&program, slot, &config, &err), &err);
    must(workload_capture(w, program, 0, &err), &err);
    must(workload_self_test(w, program, digest, &err), &err);
    workload_self_test_end(w);
    graph_program_destroy(program);
    graph_slot_destroy(slot);
    workload_destroy(w);
    device_close(dev);
}

static void describe(Ckksd__V1__ModelDescription *d, Ckksd__V1__InputLayout *in, Ckksd__V1__OutputLayout *out,
                     const char *name) {
    static uint32_t zeros[TINY_SLOTS], slots[TINY_SLOTS] = {0, 1, 2, 3}, shape[] = {TINY_SLOTS};
    ckksd__v1__model_description__init(d);
    ckksd__v1__input_layout__init(in);
    ckksd__v1__output_layout__init(out);
    d->name = (char *)(uintptr_t)name;
    d->n_input_shape = 1, d->input_shape = shape;
    in->has_kind = in->has_element_count = in->has_slot_count = true;
    in->kind = 1, in->element_count = TINY_SLOTS, in->slot_count = TINY_SLOTS;
    in->n_input = TINY_SLOTS, in->input = zeros, in->n_slot = TINY_SLOTS, in->slot = slots;
    out->has_kind = out->has_element_count = out->has_slot_count = true;
    out->kind = 1, out->element_count = TINY_SLOTS, out->slot_count = TINY_SLOTS;
    out->n_output = TINY_SLOTS, out->output = zeros, out->n_slot = TINY_SLOTS, out->slot = slots;
    d->input_layout = in, d->output_layout = out;
    d->has_promised_error = true, d->promised_error = 1e-3;
    d->has_minimum = d->has_maximum = true, d->minimum = -4, d->maximum = 4;
    d->has_output_minimum = d->has_output_maximum = true, d->output_minimum = -1, d->output_maximum = 200;
}

static uint8_t *build(size_t *size, const char *name, uint32_t variant, bool is_wrong) {
    static const uint32_t bits[] = {45, 35, 35}, special[] = {46};
    static const int32_t step[] = {1};
    double w[TINY_SLOTS];
    ckks_params params;
    ckks_error err = {0};
    uint8_t *image = NULL;
    Ckksd__V1__ModelDescription description;
    Ckksd__V1__InputLayout in;
    Ckksd__V1__OutputLayout out;
    weights_of(w, variant);
    must(params_generate(&params, 10, bits, 3, special, 1, 1, &err), &err);
    plan_fixture *f = plan_fixture_create(&params);
    uint32_t v = plan_fixture_input(f, 2, 1, 0x1p35);
    v = plan_fixture_plain(f, PLAN_MULTIPLY_PLAIN, v, w, TINY_SLOTS, (double)params.prime[2]);
    v = plan_fixture_operation(f, PLAN_RESCALE, v, 0);
    v = plan_fixture_operation(f, PLAN_ADD, v, plan_fixture_steps(f, PLAN_ROTATE, v, step, 1));
    v = plan_fixture_operation(f, PLAN_SQUARE, v, 0);
    v = plan_fixture_relinearise_rescale(f, v);
    plan_fixture_output(f, v);
    plan p = *plan_fixture_finish(f);
    p.is_insecure = true;
    p.has_self_test = false;
    for (uint32_t i = 0; i < 32; i++) p.self_test_seed[i] = (uint8_t)(i + variant);
    self_test_digest(p.self_test_digest, &p);
    p.self_test_digest[0] ^= is_wrong ? 1 : 0;
    p.has_self_test = true;
    describe(&description, &in, &out, name);
    must(package_build(&image, size, &p, &description, NULL, &err), &err);
    plan_fixture_destroy(f);
    return image;
}

uint8_t *tiny_package_build(size_t *size, const char *name, uint32_t variant) {
    return build(size, name, variant, false);
}
uint8_t *tiny_package_build_wrong(size_t *size, const char *name) {
    return build(size, name, 0, true);
}

void tiny_package_install_image(const char *folder, const char *name, const char *version,
                                const uint8_t *image, size_t size) {
    char path[1024];
    (void)mkdir(folder, 0755);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    (void)mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/%s/%s", folder, name, version);
    (void)mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/%s/%s/model.ckm", folder, name, version);
    FILE *file = fopen(path, "we");
    CKKS_ASSERT(file);
    CKKS_ASSERT(fwrite(image, 1, size, file) == size);
    CKKS_ASSERT(fclose(file) == 0);
}

void tiny_package_install(const char *folder, const char *name, const char *version, uint32_t variant) {
    size_t size = 0;
    uint8_t *image = tiny_package_build(&size, name, variant);
    tiny_package_install_image(folder, name, version, image, size);
    free(image);
}
