/* The frame: what is accepted, and each way of being refused, by the table. */
#include "proto/frame.h"

#include "kernels/base/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define HEADER "a header of 21 bytes."

/* A frame of one header and `count` segments of lengths 5, 6, 7...; bytes of segment i are i + 1. */
static size_t make_frame(uint8_t *body, frame_segment *segments, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) segments[i] = (frame_segment){1, 0, 5 + i};
    const uint64_t size = frame_layout(sizeof HEADER - 1, segments, count);
    memset(body, 0, size);
    memcpy(body + FRAME_PREFIX_BYTES, HEADER, sizeof HEADER - 1);
    uint8_t *area = frame_write_prefix(body, sizeof HEADER - 1);
    for (uint32_t i = 0; i < count; i++) memset(area + segments[i].offset, (int)i + 1, segments[i].length);
    return size;
}

static void a_frame_comes_back_as_it_was_built(void **state) {
    (void)state;
    uint8_t body[256];
    frame_segment segments[3];
    frame_view view;
    ckks_error err = {0};
    const size_t size = make_frame(body, segments, 3);
    assert_int_equal(frame_parse(&view, body, size, &err), CKKS_OK);
    assert_int_equal(view.version, 1);
    assert_int_equal(view.header_bytes, sizeof HEADER - 1);
    assert_memory_equal(view.header, HEADER, view.header_bytes);
    assert_int_equal(frame_check_segments(&view, segments, 3, &err), CKKS_OK);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(segments[i].offset % 16, 0);
        for (uint64_t k = 0; k < segments[i].length; k++)
            assert_int_equal(view.segments[segments[i].offset + k], i + 1);
    }
}

static void the_layout_is_the_written_one(void **state) {
    (void)state;
    static const uint8_t expected[] = {0x43, 0x4b, 0x44, 0x31, 1, 0, 0, 0, 3, 0, 0, 0, 'a', 'b', 'c',
                                       0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 0, 0,   9,   9};
    uint8_t body[sizeof expected];
    frame_segment segment = {2, 7, 2};
    assert_int_equal(frame_layout(3, &segment, 1), sizeof expected);
    assert_int_equal(segment.offset, 0);
    memset(body, 0xff, sizeof body);
    body[12] = 'a', body[13] = 'b', body[14] = 'c';
    memset(frame_write_prefix(body, 3), 9, 2);
    assert_memory_equal(body, expected, sizeof expected);
}

static void a_frame_of_a_header_alone_is_good(void **state) {
    (void)state;
    uint8_t body[256];
    frame_view view;
    for (uint32_t header = 0; header <= 33; header++) {
        const uint64_t size = frame_layout(header, NULL, 0);
        assert_int_equal(size, 12 + (header + 15) / 16 * 16);
        memset(body, 'x', sizeof body);
        frame_write_prefix(body, header);
        assert_int_equal(frame_parse(&view, body, size, NULL), CKKS_OK);
        assert_int_equal(view.segments_bytes, 0);
        assert_int_equal(frame_check_segments(&view, NULL, 0, NULL), CKKS_OK);
    }
}

static void parse_refuses_each_bad_field_by_name(void **state) {
    (void)state;
    static const struct {
        uint32_t offset;
        uint8_t value;
        ckks_status code;
        const char *field;
    } table[] = {
        {0, 0x44, CKKS_MALFORMED, "magic"},
        {3, 0x32, CKKS_MALFORMED, "magic"},
        {4, 2, CKKS_UNSUPPORTED_VERSION, "version"},
        {4, 0, CKKS_UNSUPPORTED_VERSION, "version"},
        {5, 1, CKKS_UNSUPPORTED_VERSION, "version"},
        {6, 1, CKKS_MALFORMED, "flags"},
        {7, 0x80, CKKS_MALFORMED, "flags"},
        {8, 200, CKKS_MALFORMED, "header_length"},
        {10, 2, CKKS_MALFORMED, "header_length"},
        {11, 0xff, CKKS_MALFORMED, "header_length"},
        {12 + 21, 1, CKKS_MALFORMED, "header_padding"},
        {12 + 31, 1, CKKS_MALFORMED, "header_padding"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        uint8_t body[128];
        frame_segment segment;
        frame_view view;
        ckks_error err = {0};
        const size_t size = make_frame(body, &segment, 1);
        body[table[i].offset] = table[i].value;
        assert_int_equal(frame_parse(&view, body, size, &err), table[i].code);
        assert_string_equal(err.field, table[i].field);
        if (table[i].code == CKKS_UNSUPPORTED_VERSION)
            assert_int_equal(view.version, bytes_read_u16(body + 4));
    }
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    uint8_t body[128];
    frame_segment segments[2];
    frame_view view;
    const size_t size = make_frame(body, segments, 2);
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *exact = malloc(cut ? cut : 1); /* so that a sanitizer sees a read past the end */
        memcpy(exact, body, cut);
        const bool parsed = frame_parse(&view, exact, cut, NULL) == CKKS_OK;
        assert_false(parsed && frame_check_segments(&view, segments, 2, NULL) == CKKS_OK);
        free(exact);
    }
}

static void segments_are_refused_unless_they_fill_the_body_exactly(void **state) {
    (void)state;
    static const struct {
        uint32_t count, index;
        uint64_t offset, length; /* put in place of segment `index` */
        const char *field;
    } table[] = {
        {2, 0, 16, 5, "segments.offset"},
        {2, 0, 1, 4, "segments.offset"},
        {2, 1, 8, 6, "segments.offset"},
        {2, 1, 0, 6, "segments.offset"},
        {2, 1, 32, 6, "segments.offset"},
        {2, 1, UINT64_MAX - 15, 6, "segments.offset"},
        {2, 0, 0, 0, "segments.length"},
        {2, 1, 16, 0, "segments.length"},
        {2, 1, 16, 7, "segments.length"},
        {2, 1, 16, UINT64_MAX, "segments.length"},
        {2, 0, 0, UINT64_MAX, "segments.length"},
        {2, 1, 16, 5, "size"},
        {2, 0, 0, 4, "segments.gap"},
        {1, 0, 0, 5, "size"},
        {0, 0, 0, 0, "size"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        uint8_t body[128];
        frame_segment segments[2];
        frame_view view;
        ckks_error err = {0};
        const size_t size = make_frame(body, segments, 2);
        assert_int_equal(frame_parse(&view, body, size, NULL), CKKS_OK);
        segments[table[i].index].offset = table[i].offset;
        segments[table[i].index].length = table[i].length;
        assert_int_equal(frame_check_segments(&view, segments, table[i].count, &err), CKKS_MALFORMED);
        assert_string_equal(err.field, table[i].field);
    }
}

static void a_gap_that_is_not_zero_is_refused(void **state) {
    (void)state;
    uint8_t body[128];
    frame_segment segments[2];
    frame_view view;
    const size_t size = make_frame(body, segments, 2);
    for (uint32_t at = 5; at < 16; at++) {
        ckks_error err = {0};
        body[12 + 32 + at] = 0x40;
        assert_int_equal(frame_parse(&view, body, size, NULL), CKKS_OK);
        assert_int_equal(frame_check_segments(&view, segments, 2, &err), CKKS_MALFORMED);
        assert_string_equal(err.field, "segments.gap");
        body[12 + 32 + at] = 0;
    }
    assert_int_equal(frame_check_segments(&view, segments, 2, NULL), CKKS_OK);
}

static void too_many_segments_are_refused(void **state) {
    (void)state;
    ckks_error err = {0};
    const frame_view view = {0};
    assert_int_equal(frame_check_segments(&view, NULL, FRAME_SEGMENTS_MAX + 1, &err), CKKS_MALFORMED);
    assert_string_equal(err.field, "segments");
}

static void layout_returns_zero_rather_than_wrap(void **state) {
    (void)state;
    frame_segment huge[2] = {{1, 0, UINT64_MAX - 20}, {1, 0, 16}};
    assert_int_equal(frame_layout(16, huge, 2), 0);
    assert_int_equal(frame_layout(16, huge, 1), 0);
    huge[0].length = UINT64_MAX;
    assert_int_equal(frame_layout(16, huge, 2), 0);
    assert_int_equal(frame_layout(FRAME_HEADER_BYTES_MAX + 1, NULL, 0), 0);
    assert_int_equal(frame_layout(FRAME_HEADER_BYTES_MAX, NULL, 0), 12 + FRAME_HEADER_BYTES_MAX);
}

static void the_longest_header_is_taken_and_one_byte_more_is_not(void **state) {
    (void)state;
    frame_view view;
    ckks_error err = {0};
    const size_t size = 12 + FRAME_HEADER_BYTES_MAX + 16;
    uint8_t *body = calloc(1, size);
    frame_write_prefix(body, FRAME_HEADER_BYTES_MAX);
    assert_int_equal(frame_parse(&view, body, size, NULL), CKKS_OK);
    assert_int_equal(view.segments_bytes, 16);
    bytes_write_u32(body + 8, FRAME_HEADER_BYTES_MAX + 1);
    assert_int_equal(frame_parse(&view, body, size, &err), CKKS_MALFORMED);
    assert_string_equal(err.field, "header_length");
    free(body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_comes_back_as_it_was_built),
        cmocka_unit_test(the_layout_is_the_written_one),
        cmocka_unit_test(a_frame_of_a_header_alone_is_good),
        cmocka_unit_test(parse_refuses_each_bad_field_by_name),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(segments_are_refused_unless_they_fill_the_body_exactly),
        cmocka_unit_test(a_gap_that_is_not_zero_is_refused),
        cmocka_unit_test(too_many_segments_are_refused),
        cmocka_unit_test(layout_returns_zero_rather_than_wrap),
        cmocka_unit_test(the_longest_header_is_taken_and_one_byte_more_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
