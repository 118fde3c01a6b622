/* A model description as a server sends it: the client's gate. */
#include "proto/package.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ProtobufCMessage *message;
    if (message_unpack(&message, &ckksd__v1__model_description__descriptor, data, size,
                       message_arena_bytes(size, 4 << 20), "description", NULL) != CKKS_OK)
        return 0;
    const Ckksd__V1__ModelDescription *d = (const Ckksd__V1__ModelDescription *)(const void *)message;
    const description_limits strict = {0}, loose = {.allow_insecure = true};
    const ckks_status first = description_check(d, &strict, NULL),
                      second = description_check(d, &loose, NULL);
    /* what the strict gate lets through is never refused by the loose one */
    CKKS_ASSERT(first != CKKS_OK || second == CKKS_OK);
    CKKS_ASSERT(first != CKKS_OK || (d->input_layout && d->output_layout && d->n_inputs && d->n_outputs));
    message_free(message);
    return 0;
}
