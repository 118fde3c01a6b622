/*
 * A product of ciphertexts on the way into the key switch of its last components: MULTIPLY or SQUARE and the
 * first pass of the KEY_SWITCH behind it (inverse rows) in one kernel, in recordings on the FP64 path. What
 * the product writes is the same; its last components are not read back, and there is one launch less.
 */
#include "kernels/cuda/ntt_run.cuh"

namespace {

/* The product of two ciphertexts, written, and its last component on into the inverse rows: what would be
 * read back at once. */
struct ProductJob {
    PathF64 path;
    u32 prime;
    const u64 *a[2], *b[2];
    u64 *out[3], *scratch;
    template <int COUNT> __device__ __forceinline__ void load(double (&x)[COUNT], u32 at, u32 step) const {
        const int half = COUNT / 2; /* loads in flight: as many as registers allow */
#pragma unroll
        for (int k0 = 0; k0 < COUNT; k0 += half) {
            u64 w[4][half];
#pragma unroll
            for (int k = 0; k < half; k++) {
                const u32 i = at + (u32)(k0 + k) * step;
                w[0][k] = a[0][i], w[1][k] = a[1][i], w[2][k] = b[0][i], w[3][k] = b[1][i];
            }
#pragma unroll
            for (int k = 0; k < half; k++) {
                const u32 i = at + (u32)(k0 + k) * step;
                double s0 = 0.0, s1 = 0.0, s2 = 0.0;
                path.sum_add(s0, w[0][k], w[2][k]);
                path.sum_add(s1, w[0][k], w[3][k]), path.sum_add(s1, w[1][k], w[2][k]);
                path.sum_add(s2, w[1][k], w[3][k]);
                const u64 last = path.sum_finish(s2);
                out[0][i] = path.sum_finish(s0), out[1][i] = path.sum_finish(s1), out[2][i] = last;
                x[k0 + k] = path.load(last);
            }
        }
    }
    template <int COUNT>
    __device__ __forceinline__ void store(const double (&x)[COUNT], u32 at, u32 step) const {
        raw_store<PathF64>(scratch, x, at, step);
    }
};

/* job = batch * limbs + limb, as in ModUpInverseIO */
struct ProductIO {
    kernel_binary_args p;
    u64 *scratch;
    u32 limbs;
    static __device__ __forceinline__ u64 *at(const GpuTables &t, const kernel_poly &p, u32 component,
                                              u32 prime) {
        return p.words + (((size_t)component * p.component_stride + prime - p.basis.q_first) << t.log_n);
    }
    template <class P>
    __device__ __forceinline__ ProductJob open(const GpuTables &t, u32 job, typename P::C *) const {
        const u32 prime = job % limbs, batch = job / limbs;
        return {PathF64(t.prime[prime]),
                prime,
                {at(t, p.a, 2 * batch, prime), at(t, p.a, 2 * batch + 1, prime)},
                {at(t, p.b, 2 * batch, prime), at(t, p.b, 2 * batch + 1, prime)},
                {at(t, p.out, 3 * batch, prime), at(t, p.out, 3 * batch + 1, prime),
                 at(t, p.out, 3 * batch + 2, prime)},
                scratch + ((size_t)job << t.log_n)};
    }
};

/* both operands of a product, or the one of a square twice */
kernel_binary_args product_of(const device_operation *o) {
    if (o->kernel == KERNEL_MULTIPLY) return *static_cast<const kernel_binary_args *>(o->arguments);
    const kernel_unary_args *square = static_cast<const kernel_unary_args *>(o->arguments);
    return {square->tables, square->out, square->a, square->a};
}

} // namespace

bool cuda_product_begins(const device_operation *product, const device_operation *key_switch) {
    if (product->kind != GRAPH_NODE_KERNEL || key_switch->kind != GRAPH_NODE_KERNEL ||
        (product->kernel != KERNEL_MULTIPLY && product->kernel != KERNEL_SQUARE) ||
        key_switch->kernel != KERNEL_KEY_SWITCH)
        return false;
    const kernel_binary_args p = product_of(product);
    const kernel_key_switch_args *k = static_cast<const kernel_key_switch_args *>(key_switch->arguments);
    const CudaTables *tables = cuda_tables(k->tables);
    const u32 log_n = tables->device.log_n, limbs = k->a.basis.q_count, stride = p.out.component_stride;
    if (!tables->is_f64 || p.tables != k->tables || k->galois_element != 1 || limbs == 0 ||
        k->batch_count != p.out.component_count / 3 ||
        k->a.words != p.out.words + (((size_t)2 * stride) << log_n) ||
        (k->batch_count > 1 && k->a_batch_stride != 3 * stride))
        return false;
    for (const kernel_poly *x : {&p.out, &p.a, &p.b})
        if (x->basis.p_count != 0 || (x != &p.out && x->basis.q_first != 0)) return false;
    if (p.out.basis.q_first != 0 || p.out.basis.q_count != limbs || k->a.basis.q_first != 0 ||
        k->a.basis.p_count != 0)
        return false;
    /* the key switch's scratch may be what the operands were in */
    const u64 *from = k->scratch, *end = from + (((size_t)k->batch_count * limbs) << log_n);
    for (const kernel_poly *x : {&p.out, &p.a, &p.b}) {
        const u64 *words_end = x->words + (((size_t)x->component_count * x->component_stride) << log_n);
        if (from < words_end && x->words < end) return false;
    }
    return true;
}

cudaError_t cuda_product_begin(cudaStream_t stream, const device_operation *product,
                               const device_operation *key_switch) {
    const kernel_key_switch_args *k = static_cast<const kernel_key_switch_args *>(key_switch->arguments);
    const u32 limbs = k->a.basis.q_count;
    return ntt_run_path<PathF64, true, false, 0>(stream, cuda_tables(k->tables)->device,
                                                 ProductIO{product_of(product), k->scratch, limbs},
                                                 k->batch_count * limbs);
}
