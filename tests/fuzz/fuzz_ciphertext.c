/* A file of ciphertexts whose hash is right, whatever else is wrong. */
#include "tests/support/container_forge.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const ciphertext_view *view, const ckks_params *params) {
    for (uint32_t i = 0; i < view->count; i++) {
        const packed_ciphertext *c = &view->ciphertexts[i];
        const uint32_t components = c->is_seeded ? 1 : c->signature.component_count;
        packing_check(c->packed, params, c->signature.limb_count - 1, false,
                      components * c->signature.batch_count, NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static ckks_params params;
    container_view file;
    ciphertext_view view;
    if (size < 32) return 0;
    if (params.q_count == 0) params = forge_params();
    uint8_t *image = malloc(size);
    if (!image) return 0;
    memcpy(image, data, size);
    forge_digest(image, size);
    if (container_parse(&file, image, size, CONTAINER_CIPHERTEXT, NULL) == CKKS_OK) {
        if (ciphertext_from_container(&view, &file, &params, NULL) == CKKS_OK) {
            read_all(&view, &params);
            ciphertext_view_fini(&view);
        }
        container_view_fini(&file);
    }
    free(image);
    return 0;
}
