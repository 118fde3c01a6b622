/*
 * The AVX-512 kernels on a machine without AVX-512: linked with objects in which each instruction is its
 * definition in plain C (tests/support/avx512_defined.h), and with every bound of the arithmetic checked.
 */
#define AVX512_DEFINED

#include "tests/unit/test_cpu_vector_kernels.c" // NOLINT(bugprone-suspicious-include): the same tests
