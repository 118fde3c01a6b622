/*
 * The AVX-512 loops of encoding, encryption and decryption on a machine without AVX-512: linked with objects
 * in which each instruction is its definition in plain C (tests/support/avx512_defined.h), and with every
 * bound of the arithmetic checked.
 */
#define AVX512_DEFINED

#include "tests/unit/test_limb_loops.c" // NOLINT(bugprone-suspicious-include): the same tests
