/*
 * A key set in the two pieces that arrive: a manifest and a payload. Input: u16le manifest bytes, manifest,
 * payload. The declared id is put right where the sizes fit, or nothing behind it would be reached.
 */
#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "tests/support/container_forge.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void attach(key_set_view *view, const uint8_t *payload, size_t payload_bytes) {
    uint8_t digest[32];
    CKKS_ASSERT(view->count >= 1 && view->payload_bytes >= 16);
    const ckks_status rc = key_set_attach(view, payload, payload_bytes, NULL);
    CKKS_ASSERT(rc == CKKS_OK || rc == CKKS_MALFORMED || rc == CKKS_DIGEST_MISMATCH);
    if (payload_bytes != view->payload_bytes) return;
    sha256(digest, payload, payload_bytes);
    key_set_id(view->id, &view->params, view->lineage, view->seed, view->requirements, view->count, digest);
    CKKS_ASSERT(key_set_attach_hashed(view, payload, payload_bytes, digest, NULL) == CKKS_OK);
    const packed_key *last = &view->keys[view->count - 1];
    CKKS_ASSERT(last->packed + last->packed_bytes == payload + payload_bytes);
    key_set_check_residues(view, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    key_set_view view;
    if (size < 2) return 0;
    const size_t manifest_bytes = bytes_read_u16(data);
    if (manifest_bytes > size - 2) return 0;
    for (int is_public = 0; is_public < 2; is_public++) {
        if (key_set_from_bytes(&view, data + 2, manifest_bytes, is_public != 0, true, NULL) != CKKS_OK)
            continue;
        attach(&view, data + 2 + manifest_bytes, size - 2 - manifest_bytes);
        key_set_view_fini(&view);
    }
    return 0;
}
