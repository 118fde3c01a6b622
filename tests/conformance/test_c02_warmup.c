/* C2: warm-up never touches the retained buffers; none is needed; the first replay equals the eager run. */
#include "tests/support/program_fixture.h"

#include <stdlib.h>
#include <string.h>

static void capture_without_warmup_works(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    test_program t;
    test_program_init(&t, &f, NULL, PROGRAM_MULTIPLY);
    ckks_error err = {0};
    assert_ok(test_program_capture(&t, 0, &err));
    assert_int_equal(graph_program_get_state(t.program), GRAPH_PROGRAM_READY);
    assert_works(&t, a, b);
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capture_without_warmup_works),
    };
    return program_suite("C2 warm-up", tests);
}
