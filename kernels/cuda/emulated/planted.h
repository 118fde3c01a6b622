/* The emulated card's own control: kernels with one wait too few, which it must see. */
#ifndef CKKS_CUDA_EMULATED_PLANTED_H
#define CKKS_CUDA_EMULATED_PLANTED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum planted_fault {
    PLANTED_NONE,
    PLANTED_BLOCK_WAIT,  /* shared memory read without __syncthreads since it was written */
    PLANTED_WARP_WAIT,   /* ... without __syncwarp, within a warp */
    PLANTED_REUSE,       /* shared memory written again before all have read it */
    PLANTED_AHEAD,       /* ... by a warp that goes on while another has not read yet */
    PLANTED_COPY_WAIT,   /* an asynchronous copy that nobody waited for */
    PLANTED_KERNEL_WAIT, /* what the kernel before writes, read before the wait for it */
    PLANTED_BRANCH       /* parallel branches of a graph that write the same */
} planted_fault;

/* Runs a small program, correct but for `fault`, 12 times. Returns how many words of its results are wrong;
 * UINT32_MAX: the card has not even run it. Blocks. */
uint32_t planted_wrong_words(planted_fault fault);

#ifdef __cplusplus
}
#endif
#endif
