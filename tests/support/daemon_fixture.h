/*
 * A real daemon in a folder of its own, started as a process (the build with injected faults), with a fake
 * service manager that records what it hears, and a plain client: one nng REQ socket per call, messages built
 * by hand. What cannot be set up aborts the test.
 */
#ifndef CKKS_TESTS_DAEMON_FIXTURE_H
#define CKKS_TESTS_DAEMON_FIXTURE_H

#include "proto/frame.h"
#include "tests/support/key_set_fixture.h"

#include "rpc.pb-c.h"

#include <nng/nng.h>
#include <sys/types.h>

#define DAEMON_CONTROL 0
#define DAEMON_BULK    1
#define DAEMON_ADMIN   2

typedef struct daemon_fixture {
    char folder[64];
    char alice[160], bob[160], reader[160]; /* tokens: tenants acme, bolt; reader has infer only, of acme */
    pid_t pid;
    int notify;        /* the fake service manager's socket */
    char heard[16384]; /* everything it heard, one line each; the same thing once */
} daemon_fixture;

/* daemon_prepare makes the folder, tokens and an empty repository; daemon_start writes the configuration
 * (`extra` is appended) and starts; environment: "NAME=VALUE" or NULL. Waits until the daemon says READY. */
void daemon_prepare(daemon_fixture *d);
void daemon_start(daemon_fixture *d, const char *extra, const char *environment, const char *environment2);
/* daemon_stop sends SIGTERM and returns the exit status (128 + n for signal n). */
int daemon_stop(daemon_fixture *d);
void daemon_signal(const daemon_fixture *d, int number);
int daemon_wait(daemon_fixture *d);
void daemon_clean(daemon_fixture *d); /* kills what is left, removes the folder */
/* daemon_hear waits until the fake service manager has heard `text`; false after `timeout_ms`. daemon_forget
 * takes in what was said until now and forgets all of it. */
bool daemon_hear(daemon_fixture *d, const char *text, int timeout_ms);
void daemon_forget(daemon_fixture *d);

/* One reply, parsed. Zero-initialise. */
typedef struct daemon_reply {
    nng_msg *message;
    Ckksd__V1__ReplyHeader *header;
    frame_view frame;
    ProtobufCMessage *payload;
} daemon_reply;
void daemon_reply_fini(daemon_reply *r);

typedef struct daemon_call {
    int socket; /* DAEMON_CONTROL ... */
    const char *method, *token;
    const uint8_t *request_id; /* 16 bytes or NULL */
    const ProtobufCMessage *input;
    const ProtobufCMessageDescriptor *output;
    uint32_t timeout_ms; /* 0: absent */
    uint32_t segment_count;
    uint32_t segment_kinds[4];
    const uint8_t *segments[4];
    uint64_t segment_bytes[4];
} daemon_call;

/* A socket that is dialled; the caller closes it with nng_close. */
nng_socket daemon_dial(const daemon_fixture *d, int socket);
nng_msg *daemon_frame(const daemon_call *c);
/* daemon_send gives the request away; daemon_receive waits for its reply: false when there is none. */
void daemon_send(nng_socket s, nng_msg *message);
bool daemon_receive(nng_socket s, daemon_reply *out, const ProtobufCMessageDescriptor *output);
/* dial, call, close; returns the gRPC code (or -1 when no reply came) */
int daemon_do(const daemon_fixture *d, const daemon_call *c, daemon_reply *out);

/* daemon_ops_port: of the ops endpoint, by the log. daemon_http: GET of it: status code, body into text. */
uint16_t daemon_ops_port(const daemon_fixture *d);
int daemon_http(const daemon_fixture *d, const char *path, char *text, size_t size);
/* does the log contain this? */
bool daemon_logged(const daemon_fixture *d, const char *text);

#endif
