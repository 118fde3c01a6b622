/*
 * Client and server in one process: for trying and checking a model before there is a daemon. The same code
 * as on either side: keys and ciphertexts of the client's library, packed as they would travel; a prepared
 * workload and a captured program on a device.
 */
#ifndef CKKS_CTL_LOCAL_H
#define CKKS_CTL_LOCAL_H

#include "client/ctl/ctl.h"
#include "kernels/program/workload.h"

typedef struct local_keys {
    client_secret_key *secret;
    client_key_set *set; /* NULL: the model needs none */
    double make_ms;
} local_keys;
/* local_keys_make makes exactly the keys that `model` needs. Blocks. Free with local_keys_fini. */
ckks_status local_keys_make(local_keys *out, const client_model *model, client_progress progress,
                            void *progress_context, ckks_error *err);
void local_keys_fini(local_keys *keys); /* accepts zeroed */

/* A model served by one device of this machine. */
typedef struct local_server {
    device *dev;
    workload *work;
    graph_slot *slot;
    graph_program *program;
    resident_keys *keys;
    workload_memory memory;
    char description[128]; /* of the device */
    double prepare_ms;     /* from opening the device to a captured program with keys */
} local_server;
/* local_server_open: kind is a device_kind. CKKS_UNAVAILABLE or CKKS_DEVICE_ERROR where there is no such
 * device. `served` and `keys` stay the caller's and must outlive it. Blocks. */
ckks_status local_server_open(local_server *out, const package *served, const local_keys *keys,
                              uint32_t device_kind, const workload_progress *progress, ckks_error *err);
void local_server_close(local_server *server); /* accepts zeroed */

typedef struct local_timing {
    double encrypt_ms, replay_ms, decrypt_ms; /* of one request; the device's own clock for replay */
    double stage_ms;                          /* moving and unpacking the request */
    uint64_t request_bytes, reply_bytes;      /* ciphertexts, without the frames around them */
} local_timing;
/* local_infer encrypts the preprocessed elements of row_count rows (as many as go into one request), runs
 * them and decrypts: scores [row_count][score_count]. Blocks. */
ckks_status local_infer(double *scores, local_timing *timing, local_server *server, const client_model *model,
                        const local_keys *keys, const double *elements, uint32_t row_count, ckks_error *err);

#endif
