/* A model package whose hash is right, whatever else is wrong. What is accepted is written again and read
 * again. */
#include "proto/package.h"
#include "tests/support/container_forge.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void interpret(const plan *p) {
    if (p->params->log_n > 12 || p->operation_count > 32 || p->value_count > 64) return;
    const size_t slots = params_slot_count_max(p->params);
    double *inputs[64] = {0}, *outputs[64] = {0};
    bool is_small = p->output_count <= 64;
    for (uint32_t i = 0; i < p->value_count; i++) is_small &= p->values[i].batch_count <= 4;
    for (uint32_t i = 0; i < p->transform_count; i++) is_small &= p->transforms[i].term_count <= 64;
    for (uint32_t i = 0; is_small && i < p->input_count; i++) inputs[i] = calloc(4 * slots, sizeof(double));
    for (uint32_t i = 0; is_small && i < p->output_count; i++) outputs[i] = calloc(4 * slots, sizeof(double));
    if (is_small) plan_interpret(outputs, p, (const double *const *)inputs, NULL);
    for (int i = 0; i < 64; i++) free(inputs[i]), free(outputs[i]);
}

static void check_round_trip(const package *p) {
    uint8_t *image;
    size_t size;
    package *again;
    /* unknown fields and absent defaults may go; the plan stays */
    ckks_status rc =
        package_build(&image, &size, &p->plan, p->manifest->description, p->manifest->report, NULL);
    CKKS_ASSERT(rc == CKKS_OK);
    rc = package_parse(&again, image, size, true, NULL);
    CKKS_ASSERT(rc == CKKS_OK);
    CKKS_ASSERT(again->plan.value_count == p->plan.value_count);
    CKKS_ASSERT(again->plan.operation_count == p->plan.operation_count);
    package_destroy(again);
    free(image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    package *p;
    if (size < 32) return 0;
    uint8_t *image = malloc(size);
    if (!image) return 0;
    memcpy(image, data, size);
    forge_digest(image, size);
    if (package_parse(&p, image, size, true, NULL) == CKKS_OK) {
        memset(image, 0xee, size); /* it may be gone by now */
        check_round_trip(p);
        interpret(&p->plan);
        package_destroy(p);
    }
    free(image);
    return 0;
}
