/* ChaCha20 (IETF) one block per thread, in registers. */
#ifndef CKKS_CUDA_CHACHA_CUH
#define CKKS_CUDA_CHACHA_CUH

#include "kernels/cuda/cuda_internal.cuh"

__device__ __forceinline__ u32 chacha_rotate(u32 x, int n) {
    return __funnelshift_l(x, x, n);
}
__device__ __forceinline__ void chacha_quarter(u32 &a, u32 &b, u32 &c, u32 &d) {
    a += b, d = chacha_rotate(d ^ a, 16);
    c += d, b = chacha_rotate(b ^ c, 12);
    a += b, d = chacha_rotate(d ^ a, 8);
    c += d, b = chacha_rotate(b ^ c, 7);
}
/* key as 8 little-endian words at any 4-byte alignment or none */
__device__ __forceinline__ void chacha_block(u32 out[16], const unsigned char *key, u32 counter, u32 n0,
                                             u32 n1, u32 n2) {
    u32 s[16] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u};
#pragma unroll
    for (int i = 0; i < 8; i++)
        s[4 + i] = (u32)key[4 * i] | (u32)key[4 * i + 1] << 8 | (u32)key[4 * i + 2] << 16 |
                   (u32)key[4 * i + 3] << 24;
    s[12] = counter, s[13] = n0, s[14] = n1, s[15] = n2;
#pragma unroll
    for (int i = 0; i < 16; i++) out[i] = s[i];
    for (int round = 0; round < 10; round++) {
        chacha_quarter(out[0], out[4], out[8], out[12]);
        chacha_quarter(out[1], out[5], out[9], out[13]);
        chacha_quarter(out[2], out[6], out[10], out[14]);
        chacha_quarter(out[3], out[7], out[11], out[15]);
        chacha_quarter(out[0], out[5], out[10], out[15]);
        chacha_quarter(out[1], out[6], out[11], out[12]);
        chacha_quarter(out[2], out[7], out[8], out[13]);
        chacha_quarter(out[3], out[4], out[9], out[14]);
    }
#pragma unroll
    for (int i = 0; i < 16; i++) out[i] += s[i];
}

#endif
