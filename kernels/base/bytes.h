/*
 * Little-endian reads and writes at any alignment, checked size arithmetic, hexadecimal text.
 * All functions here are pure and thread-safe.
 */
#ifndef CKKS_BASE_BYTES_H
#define CKKS_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t bytes_read_u16(const void *at) {
    const uint8_t *b = at;
    return (uint16_t)(b[0] | b[1] << 8);
}
static inline uint32_t bytes_read_u32(const void *at) {
    const uint8_t *b = at;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}
static inline uint64_t bytes_read_u64(const void *at) {
    const uint8_t *b = at;
    return (uint64_t)bytes_read_u32(b) | (uint64_t)bytes_read_u32(b + 4) << 32;
}
static inline void bytes_write_u16(void *at, uint16_t v) {
    uint8_t *b = at;
    b[0] = (uint8_t)v, b[1] = (uint8_t)(v >> 8);
}
static inline void bytes_write_u32(void *at, uint32_t v) {
    uint8_t *b = at;
    for (int i = 0; i < 4; i++) b[i] = (uint8_t)(v >> (8 * i));
}
static inline void bytes_write_u64(void *at, uint64_t v) {
    uint8_t *b = at;
    for (int i = 0; i < 8; i++) b[i] = (uint8_t)(v >> (8 * i));
}

/* size_multiply, size_add: *out = a op b; false (and *out untouched) when the result does not fit 64 bits. */
static inline bool size_multiply(uint64_t *out, uint64_t a, uint64_t b) {
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool size_add(uint64_t *out, uint64_t a, uint64_t b) {
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

/* align_up rounds up to a multiple of `alignment`, a power of two. The caller has bounded `value`. */
static inline uint64_t align_up(uint64_t value, uint64_t alignment) {
    return (value + alignment - 1) & ~(alignment - 1);
}

/* text_step: bytes of the character that `at` begins with (a NUL-terminated text) if it is one that people
 * may be shown: well-formed UTF-8, no control character (terminals obey them; U+0080 to U+009F are some too),
 * and none of U+202A to U+202E, U+2066 to U+2069, which turn text around. Else 0. */
static inline size_t text_step(const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    if (c[0] < 0x80) return c[0] < 0x20 || c[0] == 0x7f ? 0 : 1;
    const size_t more = c[0] >= 0xC2 && c[0] < 0xE0   ? 1
                        : c[0] >= 0xE0 && c[0] < 0xF0 ? 2
                        : c[0] >= 0xF0 && c[0] < 0xF5 ? 3
                                                      : 0;
    if (!more) return 0;
    for (size_t i = 1; i <= more; i++)
        if ((c[i] & 0xC0) != 0x80) return 0;
    if (more == 1 && c[0] == 0xC2 && c[1] < 0xA0) return 0;
    if ((c[0] == 0xE0 && c[1] < 0xA0) || (c[0] == 0xF0 && c[1] < 0x90)) return 0;   /* longer than need be */
    if ((c[0] == 0xED && c[1] >= 0xA0) || (c[0] == 0xF4 && c[1] >= 0x90)) return 0; /* no characters */
    if (c[0] == 0xE2 && c[1] == 0x80 && c[2] >= 0xAA && c[2] <= 0xAE) return 0;
    if (c[0] == 0xE2 && c[1] == 0x81 && c[2] >= 0xA6 && c[2] <= 0xA9) return 0;
    return more + 1;
}

/* hex_encode writes 2*count lower-case digits and a NUL into text[2*count+1]; returns text. */
static inline char *hex_encode(char *text, const uint8_t *data, size_t count) {
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++)
        text[2 * i] = digit[data[i] >> 4], text[2 * i + 1] = digit[data[i] & 15];
    text[2 * count] = 0;
    return text;
}

/* hex_decode fills data[count] from exactly 2*count digits; false on any other text. */
static inline bool hex_decode(uint8_t *data, size_t count, const char *text) {
    if (strlen(text) != 2 * count) return false;
    for (size_t i = 0; i < count; i++) {
        unsigned value = 0;
        for (int k = 0; k < 2; k++) {
            const char c = text[2 * i + (size_t)k];
            unsigned nibble;
            if (c >= '0' && c <= '9')
                nibble = (unsigned)(c - '0');
            else if (c >= 'a' && c <= 'f')
                nibble = (unsigned)(c - 'a') + 10;
            else if (c >= 'A' && c <= 'F')
                nibble = (unsigned)(c - 'A') + 10;
            else
                return false;
            value = value << 4 | nibble;
        }
        data[i] = (uint8_t)value;
    }
    return true;
}

#endif
