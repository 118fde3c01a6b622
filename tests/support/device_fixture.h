/*
 * A device (see fixture_device_kind) with one stream, one parameter set and helpers that must succeed: a call
 * that fails aborts the test with the cause. Everything here is synchronous.
 */
#ifndef CKKS_TESTS_DEVICE_FIXTURE_H
#define CKKS_TESTS_DEVICE_FIXTURE_H

#include "kernels/device_graph.h"
#include "tests/support/fixtures.h"

typedef struct device_fixture {
    device *dev;
    device_stream *stream;
    ckks_context *context;
    const device_tables *tables;
    const ckks_params *params;
    uint32_t n;
} device_fixture;

/* takes the context; context NULL: a small one of N = 2^10 */
void device_fixture_open(device_fixture *f, ckks_context *context, uint32_t threads);
/* asserts that no memory is left */
void device_fixture_close(device_fixture *f);

/* device memory, returned with device_free; `host` NULL: filled with 0xa5 */
void *device_fixture_upload(device_fixture *f, const void *host, uint64_t bytes);
void device_fixture_download(device_fixture *f, void *host, const void *from, uint64_t bytes);
/* launches and synchronises */
void device_fixture_launch(device_fixture *f, kernel_id kernel, const void *arguments);

/* a contiguous polynomial in Q (or QP) */
kernel_poly device_fixture_poly(uint64_t *words, uint32_t component_count, kernel_basis basis);

#endif
