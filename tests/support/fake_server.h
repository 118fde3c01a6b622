/*
 * A server that lies, stalls and refuses, for tests of the client's RPC half: an nng REP socket in this
 * process, behind ipc sockets so that messages are copied as between processes.
 */
#ifndef CKKS_TESTS_FAKE_SERVER_H
#define CKKS_TESTS_FAKE_SERVER_H

#include "client/lib/rpc.h"
#include "tests/support/model_fixture.h"

#include <nng/nng.h>

#include <pthread.h>
#include <stdatomic.h>

typedef enum lie {
    HONEST,
    OTHER_MODEL,
    OTHER_VERSION,
    OTHER_DIGEST,
    NO_DIGEST,
    NO_OUTPUTS,
    EXTRA_SEGMENT,
    SCALE_ONE_ULP_OFF,
    OTHER_PARAMETERS,
    SHORT_SEGMENT,
    LONG_SEGMENT,
    WRONG_SEGMENT_KIND,
    WRONG_REQUEST_ID,
    NO_STATUS,
    NO_PAYLOAD,
    CUT_FRAME,
    GARBAGE,
    DIRTY_PADDING,
    OVERLAPPING_SEGMENT,
    BAD_RESIDUES,
    REFUSE_UNKNOWN_KEY,
    REFUSE_WITH_ESCAPES,
    FULL_TWICE,
    DRAIN_ONCE,
    SILENT_ONCE,
    SILENT,
    PAYLOAD_APART
} lie;

typedef struct fake_server {
    nng_socket socket;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows, which the test and the server thread share */
    char address[64], bulk_address[64];
    lie mode;
    uint32_t calls; /* of the method under test */
    uint8_t ids[8][16];
    atomic_uint pipes_gone;
    model_fixture fixture;
    /* keys */
    uint32_t part_count, parts_seen, begin_count, commit_count;
    bool has_part[64];
    uint64_t part_bytes, payload_bytes;
    uint32_t wrong_parts;  /* of another size than declared */
    bool drop_first_parts; /* forgets the first round, as a restart would */
    /* lies about uploads */
    uint64_t part_limit; /* of the metadata */
    const uint32_t *asked;
    size_t asked_count;
} fake_server;

/* There is one, with a client's connection to it, the model that it serves and a secret key. */
extern fake_server server;
extern rpc_connection *connection;
extern client_model *model;
extern client_secret_key *secret;

/* cmocka's group set-up and tear-down */
int fake_server_start(void **state);
int fake_server_stop(void **state);
void fake_server_set_mode(lie mode);
/* fake_server_infer: one inference with the server in `mode`, which is HONEST again afterwards; scores of the
 * reply if it came that far. `timing` may be NULL. */
ckks_status fake_server_infer(lie mode, uint32_t timeout_ms, double scores[2], rpc_timing *timing,
                              ckks_error *err);
/* fake_server_text: the same text for a message's field, which nobody writes to. */
char *fake_server_text(const char *text);

#endif
