#include "client/compile/model.h"
#include "kernels/base/bytes.h"

#include <math.h>
#include <stdio.h>

ckks_status tensor_shape(tensor *t, const int64_t *dims, size_t rank, uint32_t count_max, const char *what,
                         ckks_error *err) {
    if (rank > TENSOR_RANK_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, what, "has %zu axes, over %u", rank, TENSOR_RANK_MAX);
    uint64_t count = 1;
    for (size_t i = 0; i < rank; i++) {
        if (dims[i] < 0)
            return ckks_error_set(err, CKKS_MALFORMED, what, "axis %zu has %lld elements", i,
                                  (long long)dims[i]);
        if (!size_multiply(&count, count, (uint64_t)dims[i]) || count > count_max || dims[i] > UINT32_MAX)
            return ckks_error_set(err, CKKS_TOO_LARGE, what, "has more than %u elements%s", count_max,
                                  count_max == MODEL_ROW_MAX
                                      ? ", the most that a value of one row may have: use smaller images or "
                                        "fewer channels"
                                      : "");
        t->dims[i] = (uint32_t)dims[i];
    }
    t->rank = (uint32_t)rank;
    t->count = (uint32_t)count;
    return CKKS_OK;
}

char *tensor_text(const tensor *t, char *text, size_t capacity) {
    size_t used = (size_t)snprintf(text, capacity, "[");
    for (uint32_t i = 0; i < t->rank && used < capacity; i++)
        used += (size_t)snprintf(text + used, capacity - used, "%s%u", i ? ", " : "", t->dims[i]);
    if (used < capacity) snprintf(text + used, capacity - used, "]");
    return text;
}

static double half_value(uint16_t bits) {
    const int exponent = bits >> 10 & 31;
    const double fraction = bits & 1023;
    const double magnitude = exponent == 31  ? (fraction != 0 ? (double)NAN : (double)INFINITY)
                             : exponent == 0 ? ldexp(fraction, -24)
                                             : ldexp(1024 + fraction, exponent - 25);
    return bits >> 15 ? -magnitude : magnitude;
}

/* the upper half of a binary32 */
static double brain_value(uint16_t upper) {
    const uint32_t bits = (uint32_t)upper << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* one element of raw_data, little-endian */
static double raw_value(const uint8_t *at, int32_t type) {
    switch (type) {
    case ELEMENT_FLOAT: {
        const uint32_t bits = bytes_read_u32(at);
        float value;
        memcpy(&value, &bits, sizeof value);
        return (double)value;
    }
    case ELEMENT_DOUBLE: {
        const uint64_t bits = bytes_read_u64(at);
        double value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    case ELEMENT_FLOAT16:
        return half_value(bytes_read_u16(at));
    case ELEMENT_BFLOAT16:
        return brain_value(bytes_read_u16(at));
    case ELEMENT_UINT8:
    case ELEMENT_BOOL:
        return *at;
    case ELEMENT_INT8:
        return (int8_t)*at;
    case ELEMENT_UINT16:
        return bytes_read_u16(at);
    case ELEMENT_INT16:
        return (int16_t)bytes_read_u16(at);
    case ELEMENT_INT32:
        return (int32_t)bytes_read_u32(at);
    case ELEMENT_UINT32:
        return bytes_read_u32(at);
    case ELEMENT_INT64:
        return (double)(int64_t)bytes_read_u64(at);
    default:
        return (double)bytes_read_u64(at); /* ELEMENT_UINT64 */
    }
}

static uint32_t element_bytes(int32_t type) {
    switch (type) {
    case ELEMENT_UINT8:
    case ELEMENT_INT8:
    case ELEMENT_BOOL:
        return 1;
    case ELEMENT_UINT16:
    case ELEMENT_INT16:
    case ELEMENT_FLOAT16:
    case ELEMENT_BFLOAT16:
        return 2;
    case ELEMENT_FLOAT:
    case ELEMENT_INT32:
    case ELEMENT_UINT32:
        return 4;
    case ELEMENT_DOUBLE:
    case ELEMENT_INT64:
    case ELEMENT_UINT64:
        return 8;
    default:
        return 0;
    }
}

/* elements that the typed list for `type` has, and one of them */
static size_t typed_count(const Onnx__Tensor *m) {
    switch (m->data_type) {
    case ELEMENT_FLOAT:
        return m->n_float_data;
    case ELEMENT_DOUBLE:
        return m->n_double_data;
    case ELEMENT_INT64:
        return m->n_int64_data;
    case ELEMENT_UINT32:
    case ELEMENT_UINT64:
        return m->n_uint64_data;
    default:
        return m->n_int32_data;
    }
}
static double typed_value(const Onnx__Tensor *m, size_t i) {
    switch (m->data_type) {
    case ELEMENT_FLOAT:
        return (double)m->float_data[i];
    case ELEMENT_DOUBLE:
        return m->double_data[i];
    case ELEMENT_INT64:
        return (double)m->int64_data[i];
    case ELEMENT_UINT32:
    case ELEMENT_UINT64:
        return (double)m->uint64_data[i];
    case ELEMENT_FLOAT16:
        return half_value((uint16_t)m->int32_data[i]);
    case ELEMENT_BFLOAT16:
        return brain_value((uint16_t)m->int32_data[i]);
    default:
        return m->int32_data[i];
    }
}

static ckks_status check_kind(const Onnx__Tensor *m, const char *what, ckks_error *err) {
    if (m->segment.len) return ckks_error_set(err, CKKS_UNSUPPORTED, what, "a tensor in segments");
    if (!element_bytes(m->data_type))
        return ckks_error_set(err, CKKS_UNSUPPORTED, what, "elements of ONNX type %d: convert them to float",
                              m->data_type);
    return CKKS_OK;
}

/* `raw` is the data, or NULL: a typed list has it */
static ckks_status read_elements(tensor *out, const Onnx__Tensor *m, const uint8_t *raw, size_t raw_size,
                                 arena *memory, const char *what, ckks_error *err) {
    ckks_status rc;
    tensor t = {0};
    if ((rc = check_kind(m, what, err)) != CKKS_OK) return rc;
    if ((rc = tensor_shape(&t, m->dims, m->n_dims, TENSOR_ELEMENTS_MAX, what, err)) != CKKS_OK) return rc;
    const uint32_t size = element_bytes(m->data_type);
    /* before any memory is taken: the file must hold what the shape claims */
    const uint64_t have = raw ? raw_size : typed_count(m);
    const uint64_t want = raw ? (uint64_t)t.count * size : t.count;
    if (have != want)
        return ckks_error_set(err, CKKS_MALFORMED, what, "has %llu %s, its shape asks for %llu",
                              (unsigned long long)have, raw ? "bytes" : "elements", (unsigned long long)want);
    t.data = arena_take(memory, t.count, sizeof *t.data);
    if (!t.data)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, what, "no memory for %u elements", t.count);
    t.is_integer = m->data_type != ELEMENT_FLOAT && m->data_type != ELEMENT_DOUBLE &&
                   m->data_type != ELEMENT_FLOAT16 && m->data_type != ELEMENT_BFLOAT16;
    for (uint32_t i = 0; i < t.count; i++) {
        t.data[i] = raw ? raw_value(raw + (size_t)i * size, m->data_type) : typed_value(m, i);
        if (!isfinite(t.data[i]))
            return ckks_error_set(err, CKKS_OUT_OF_RANGE, what, "element %u is not finite", i);
    }
    *out = t;
    return CKKS_OK;
}

ckks_status tensor_from_message(tensor *out, const Onnx__Tensor *m, arena *memory, const char *what,
                                ckks_error *err) {
    static const uint8_t nothing[1];
    if (m->data_location != 0 || m->n_external_data)
        return ckks_error_set(
            err, CKKS_UNSUPPORTED, what,
            "its data is in another file: load the model from its folder, or save it as one file "
            "(onnx.save_model without save_as_external_data)");
    /* raw data of no bytes has no place */
    const uint8_t *raw = !m->has_raw_data ? NULL : m->raw_data.data ? m->raw_data.data : nothing;
    return read_elements(out, m, raw, m->raw_data.len, memory, what, err);
}

ckks_status tensor_from_bytes(tensor *out, const Onnx__Tensor *m, const uint8_t *bytes, size_t size,
                              arena *memory, const char *what, ckks_error *err) {
    return read_elements(out, m, bytes, size, memory, what, err);
}
