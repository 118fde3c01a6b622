#include "tests/support/onnx_failures.h"

#include "client/compile/model.h"
#include "tests/support/alloc_fault.h"

#include <setjmp.h>
#include <stdarg.h>
// cmocka wants these first
#include <cmocka.h>

#define ALLOCATIONS_MAX 100000u

void onnx_load_with_failing_allocations(const char *path) {
    for (uint32_t nth = 1; nth < ALLOCATIONS_MAX; nth++) {
        ckks_error err = {0};
        onnx_model *m = NULL;
        alloc_fault_set(nth);
        const ckks_status rc = onnx_model_load(&m, path, &err);
        const bool is_past = alloc_fault_calls() < nth;
        alloc_fault_set(0);
        onnx_model_destroy(m);
        if (is_past) {
            assert_int_equal(rc, CKKS_OK);
            print_message("  %s: %u allocations\n", path, nth - 1);
            assert_true(nth > 3);
            return;
        }
        if (rc != CKKS_OK && rc != CKKS_RESOURCE_EXHAUSTED && rc != CKKS_IO && rc != CKKS_NOT_FOUND)
            fail_msg("%s, allocation %u: %s", path, nth, ckks_status_name(rc));
    }
    fail_msg("%s: more than %u allocations", path, ALLOCATIONS_MAX);
}
