/* Requests that were encrypted elsewhere: sent as they are, saved as they come back. */
#include "client/ctl/infer.h"

#include <stdlib.h>
#include <string.h>

#define REQUEST_FILE_BYTES_MAX (UINT64_C(1) << 30)

bool infer_is_request_file(const char *path) {
    char head[CONTAINER_MAGIC_BYTES];
    FILE *f = strcmp(path, "-") ? fopen(path, "re") : NULL;
    if (!f) return false;
    const bool is_ours = fread(head, 1, sizeof head, f) == sizeof head &&
                         !memcmp(head, CONTAINER_MAGIC, CONTAINER_MAGIC_BYTES);
    fclose(f);
    return is_ours;
}

ckks_status infer_send_file(rpc_connection *connection, const client_model *model, const uint8_t key_set[32],
                            const char *request_path, const char *result_path, ckks_error *err) {
    ckks_status rc;
    uint8_t *image = NULL;
    size_t size = 0;
    client_ciphertexts request = {0}, result = {0};
    ckks_error inner = {0};
    if ((rc = file_read(&image, &size, request_path, REQUEST_FILE_BYTES_MAX, err)) != CKKS_OK) return rc;
    rc = client_ciphertexts_import(&request, model, true, image, size, &inner);
    file_name_error(&inner, request_path);
    if (rc == CKKS_OK) rc = rpc_infer(&result, connection, model, key_set, &request, 0, NULL, &inner);
    free(image);
    image = NULL;
    if (rc == CKKS_OK) rc = client_ciphertexts_export(&image, &size, &result, model, &inner);
    if (rc == CKKS_OK) rc = file_make_parents(result_path, &inner);
    if (rc == CKKS_OK) rc = file_write(result_path, image, size, 0644, true, &inner);
    if (rc != CKKS_OK && err && err->code == CKKS_OK) *err = inner;
    free(image);
    client_ciphertexts_fini(&request);
    client_ciphertexts_fini(&result);
    return rc;
}
