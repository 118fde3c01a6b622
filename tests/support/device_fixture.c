#include "tests/support/device_fixture.h"

#include <stdio.h>
#include <stdlib.h>

static void must(ckks_status rc, const char *what, const ckks_error *err) {
    char text[512];
    if (rc == CKKS_OK) return;
    fprintf(stderr, "device fixture: %s: %s\n", what, ckks_error_print(err, text, sizeof text));
    abort();
}

void device_fixture_open(device_fixture *f, ckks_context *context, uint32_t threads) {
    ckks_error err = {0};
    *f = (device_fixture){.dev = fixture_open_device(threads),
                          .context = context ? context : fixture_context(10, 2, 1, 1)};
    f->params = context_params(f->context);
    f->n = params_n(f->params);
    must(device_stream_create(f->dev, &f->stream, &err), "stream", &err);
    must(device_tables_acquire(f->dev, &f->tables, f->context, &err), "tables", &err);
}

void device_fixture_close(device_fixture *f) {
    device_tables_release(f->dev, f->tables);
    device_stream_destroy(f->stream);
    device_close(f->dev);
    context_destroy(f->context);
    *f = (device_fixture){0};
}

void *device_fixture_upload(device_fixture *f, const void *host, uint64_t bytes) {
    ckks_error err = {0};
    void *address = NULL;
    must(device_allocate(f->dev, &address, bytes, MEMORY_ARENA, &err), "allocate", &err);
    if (host)
        must(device_copy_in(f->stream, address, host, bytes, &err), "copy in", &err);
    else
        must(device_fill(f->stream, address, 0xa5, bytes, &err), "fill", &err);
    must(device_stream_synchronize(f->stream, &err), "synchronise", &err);
    return address;
}

void device_fixture_download(device_fixture *f, void *host, const void *from, uint64_t bytes) {
    ckks_error err = {0};
    must(device_copy_out(f->stream, host, from, bytes, &err), "copy out", &err);
    must(device_stream_synchronize(f->stream, &err), "synchronise", &err);
}

void device_fixture_launch(device_fixture *f, kernel_id kernel, const void *arguments) {
    ckks_error err = {0};
    must(device_launch(f->stream, kernel, arguments, &err), kernel_name(kernel), &err);
    must(device_stream_synchronize(f->stream, &err), kernel_name(kernel), &err);
}

kernel_poly device_fixture_poly(uint64_t *words, uint32_t component_count, kernel_basis basis) {
    return (kernel_poly){words, component_count, basis_limb_count(basis), basis};
}
