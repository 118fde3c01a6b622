/*
 * Key switching: MOD_UP, KEY_PRODUCT, SWITCH_PRODUCT, KEY_SWITCH.
 *
 * MOD_UP is four launches (inverse rows, inverse columns, conversion + forward columns, forward rows; small
 * rings do the middle two in one) for all digits and all batch entries together. SWITCH_PRODUCT has the
 * product with the key in the place of the last one's store (row_product), so that digits never go to memory
 * as words; automorphisms are applied to what the inverse transform reads, with which the conversion
 * commutes. KEY_SWITCH is seven launches (five in small rings): row_product goes on into the inverse rows of
 * the limbs that are divided by. The first of them may have been a product of ciphertexts (product.cu).
 */
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/divide.cuh"
#include "kernels/cuda/row_product.cuh"
#include "kernels/cuda/rows.cuh"

namespace {

/* ---- MOD_UP ---- */

template <class P, bool LAST> struct ModUpInverseJob {
    P path;
    u32 prime;
    const u64 *in;
    u64 *scratch;
    typename P::C hat_inverse_n;
    u32 galois, log_n;
    template <int COUNT>
    __device__ __forceinline__ void load(typename P::T (&x)[COUNT], u32 at, u32 step) const {
        if constexpr (LAST) {
            raw_load<P>(x, scratch, at, step);
        } else {
#pragma unroll
            for (int k = 0; k < COUNT; k++) {
                const u32 i = at + (u32)k * step;
                x[k] = path.load(in[galois == 1 ? i : gpu_permute(i, galois, log_n)]);
            }
        }
    }
    template <int COUNT>
    __device__ __forceinline__ void store(const typename P::T (&x)[COUNT], u32 at, u32 step) const {
        if constexpr (!LAST) {
            raw_store<P>(scratch, x, at, step);
        } else {
#pragma unroll
            for (int k = 0; k < COUNT; k++)
                scratch[at + (u32)k * step] = source_raw(path, x[k], hat_inverse_n);
        }
    }
};

/* items (NULL: galois for all): each batch entry is read through the automorphism of its item */
template <bool LAST> struct ModUpInverseIO {
    kernel_mod_up_args a;
    u32 level;
    const key_product_item *items;
    u32 galois;
    __device__ __forceinline__ bool skip(const GpuTables &, u32) const { return false; }
    __device__ __forceinline__ void bypass(const GpuTables &, u32, u32, u32) const {}
    template <class P>
    __device__ __forceinline__ ModUpInverseJob<P, LAST> open(const GpuTables &t, u32 job,
                                                             typename P::C *) const {
        const u32 prime = job % (level + 1), batch = job / (level + 1), digit = prime / t.digit_size;
        const P path(t.prime[prime]);
        const GpuConversion *c = t.mod_up + (size_t)level * t.dnum + digit;
        return {path,
                prime,
                a.a.words + (((size_t)batch * a.a_batch_stride + prime) << t.log_n),
                a.scratch + ((size_t)job << t.log_n),
                path.constant(LAST ? __ldg(c->hat_inverse_n + prime % t.digit_size) : 0),
                !LAST && items ? items[batch].galois_element : galois,
                t.log_n};
    }
};

template <class P, bool LAST> struct ModUpForwardJob {
    P path;
    u32 prime;
    const GpuTables &t;
    const GpuConversion *conversion;
    u32 sources;
    const typename P::C *hat;
    const u64 *y;
    u64 *out;
    template <int COUNT>
    __device__ __forceinline__ void load(typename P::T (&x)[COUNT], u32 at, u32 step) const {
        if constexpr (LAST)
            raw_load<P>(x, out, at, step);
        else
            convert(x, path, t, conversion, sources, prime, hat, y, at, step);
    }
    template <int COUNT>
    __device__ __forceinline__ void store(const typename P::T (&x)[COUNT], u32 at, u32 step) const {
        if constexpr (!LAST) {
            raw_store<P>(out, x, at, step);
        } else {
#pragma unroll
            for (int k = 0; k < COUNT; k++) out[at + (u32)k * step] = path.finish(x[k]);
        }
    }
};

template <bool LAST> struct ModUpForwardIO {
    kernel_mod_up_args a;
    u32 level, limbs, digits;
    /* job = (batch * digits + digit) * limbs + limb */
    __device__ __forceinline__ u32 limb(u32 job) const { return job % limbs; }
    __device__ __forceinline__ u32 digit(u32 job) const { return job / limbs % digits; }
    __device__ __forceinline__ u32 batch(u32 job) const { return job / limbs / digits; }
    __device__ __forceinline__ bool skip(const GpuTables &t, u32 job) const {
        return limb(job) <= level && limb(job) / t.digit_size == digit(job);
    }
    __device__ __forceinline__ void bypass(const GpuTables &t, u32 job, u32 base, u32 count) const {
        if (!LAST) return;
        const u64 *from = a.a.words + (((size_t)batch(job) * a.a_batch_stride + limb(job)) << t.log_n);
        u64 *to = a.out + ((size_t)job << t.log_n);
        for (u32 i = base + threadIdx.x; i < base + count; i += blockDim.x) to[i] = from[i];
    }
    template <class P>
    __device__ __forceinline__ ModUpForwardJob<P, LAST> open(const GpuTables &t, u32 job,
                                                             typename P::C *constants) const {
        const u32 prime = limb(job) <= level ? limb(job) : t.q_count + limb(job) - level - 1;
        const u32 first = digit(job) * t.digit_size, sources = min(t.digit_size, level + 1 - first);
        const P path(t.prime[prime]);
        const GpuConversion *c = t.mod_up + (size_t)level * t.dnum + digit(job);
        if (!LAST) stage_constants(path, t, c, sources, prime, constants);
        return {path,
                prime,
                t,
                c,
                sources,
                constants,
                a.scratch + (((size_t)batch(job) * (level + 1) + first) << t.log_n),
                a.out + ((size_t)job << t.log_n)};
    }
};

/* unit = batch * digits + digit; targets are all limbs but the digit's own */
struct ModUpConvertIO {
    kernel_mod_up_args a;
    u32 level, limbs, digits;
    __device__ __forceinline__ u32 first(const GpuTables &t, u32 unit) const {
        return unit % digits * t.digit_size;
    }
    __device__ __forceinline__ u32 sources(const GpuTables &t, u32 unit) const {
        return min(t.digit_size, level + 1 - first(t, unit));
    }
    __device__ __forceinline__ u32 targets(const GpuTables &t, u32 unit) const {
        return limbs - sources(t, unit);
    }
    __device__ __forceinline__ u32 limb(const GpuTables &t, u32 unit, u32 target) const {
        return target < first(t, unit) ? target : target + sources(t, unit);
    }
    __device__ __forceinline__ u32 prime(const GpuTables &t, u32 unit, u32 target) const {
        const u32 i = limb(t, unit, target);
        return i <= level ? i : t.q_count + i - level - 1;
    }
    __device__ __forceinline__ const GpuConversion *conversion(const GpuTables &t, u32 unit) const {
        return t.mod_up + (size_t)level * t.dnum + unit % digits;
    }
    __device__ __forceinline__ const u64 *y(const GpuTables &t, u32 unit) const {
        return a.scratch + (((size_t)(unit / digits) * (level + 1) + first(t, unit)) << t.log_n);
    }
    __device__ __forceinline__ u64 *out(const GpuTables &t, u32 unit, u32 target) const {
        return a.out + (((size_t)unit * limbs + limb(t, unit, target)) << t.log_n);
    }
};

/* ---- KEY_PRODUCT ---- */

const u32 key_product_threads = 64;

struct KeyProductShape {
    u32 level, q_limbs, limbs, digits, p_count;
    u32 is_listed; /* an out's items are to be looked for; else item n is that of out n, and its alone */
};

/* Words i .. i + 3, i a multiple of 4, through an automorphism: those of a pair stay neighbours. */
struct KeyProductQuad {
    u32 first, second; /* where words i and i + 2 come from */
    __device__ __forceinline__ KeyProductQuad(u32 i, u32 galois, u32 log_n)
        : first(galois == 1 ? i : gpu_permute(i, galois, log_n)),
          second(galois == 1 ? i + 2 : gpu_permute(i + 2, galois, log_n)) {}
    __device__ __forceinline__ void load(u64 (&x)[4], const u64 *limb) const {
        pair(x[0], x[1], limb, first), pair(x[2], x[3], limb, second);
    }

  private:
    static __device__ __forceinline__ void pair(u64 &a, u64 &b, const u64 *limb, u32 from) {
        const ulonglong2 words = *reinterpret_cast<const ulonglong2 *>(limb + (from & ~1u));
        a = from & 1 ? words.y : words.x, b = from & 1 ? words.x : words.y;
    }
};

/* Residues i .. i + 3 of a key's limb, read once: outs share digits, never keys. */
struct KeyFour {
    uint4 low;   /* words: the first two */
    uint4 above; /* words: the other two; split: the middle parts, then the top */
    __device__ __forceinline__ void load(const u64 *limb, u32 i, u32 layout) {
        if (layout == KEY_WORDS) {
            low = __ldcs(reinterpret_cast<const uint4 *>(limb + i));
            above = __ldcs(reinterpret_cast<const uint4 *>(limb + i + 2));
            return;
        }
        const u32 at = i % KEY_SPLIT_RESIDUES / 4;
        const unsigned char *block =
            reinterpret_cast<const unsigned char *>(limb + i / KEY_SPLIT_RESIDUES * KEY_SPLIT_RESIDUES);
        const uint2 middle = __ldcs(reinterpret_cast<const uint2 *>(block + KEY_SPLIT_MIDDLE) + at);
        low = __ldcs(reinterpret_cast<const uint4 *>(block) + at);
        above.x = middle.x, above.y = middle.y, above.z = __ldcs(block + KEY_SPLIT_TOP + at);
    }
    __device__ __forceinline__ void words(u64 (&w)[4], u32 layout) const {
        if (layout == KEY_WORDS) {
            w[0] = join(low.y, low.x), w[1] = join(low.w, low.z);
            w[2] = join(above.y, above.x), w[3] = join(above.w, above.z);
            return;
        }
        const u32 top = above.z;
        w[0] = join((above.x & 0xffff) | (top << 16 & 0x30000), low.x);
        w[1] = join((above.x >> 16) | (top << 14 & 0x30000), low.y);
        w[2] = join((above.y & 0xffff) | (top << 12 & 0x30000), low.z);
        w[3] = join((above.y >> 16) | (top << 10 & 0x30000), low.w);
    }

  private:
    static __device__ __forceinline__ u64 join(u32 high, u32 low) { return (u64)high << 32 | low; }
};

/* grid: (N / 256, limbs, components): a block of residues in place */
__global__ void __launch_bounds__(KEY_SPLIT_RESIDUES) narrow_key(GpuTables t, kernel_poly key) {
    gpu_release_next();
    gpu_wait();
    u64 *words = key.words + (((size_t)blockIdx.z * key.component_stride + blockIdx.y) << t.log_n) +
                 blockIdx.x * KEY_SPLIT_RESIDUES;
    unsigned char *block = reinterpret_cast<unsigned char *>(words);
    const u32 at = threadIdx.x;
    const u64 word = words[at];
    __syncthreads();
    u32 top = (u32)(word >> 48 & 3) << (2 * (at % 4));
    top |= __shfl_xor_sync(0xffffffffu, top, 1);
    top |= __shfl_xor_sync(0xffffffffu, top, 2);
    reinterpret_cast<u32 *>(block)[at] = (u32)word;
    reinterpret_cast<unsigned short *>(block + KEY_SPLIT_MIDDLE)[at] = (unsigned short)(word >> 32);
    if (at % 4 == 0) block[KEY_SPLIT_TOP + at / 4] = (unsigned char)top;
}

/* AHEAD: digits whose loads are on their way before the first product */
template <class P, u32 AHEAD>
__device__ __forceinline__ void key_product_of(const GpuTables &t, const kernel_key_product_args &a,
                                               const KeyProductShape &s) {
    const u32 i = (blockIdx.y * blockDim.x + threadIdx.x) * 4, limb = blockIdx.z, out_index = blockIdx.x;
    const u32 prime = limb < s.q_limbs ? limb : t.q_count + limb - s.q_limbs;
    const P path(t.prime[prime]);
    typename P::Accumulator sum[2][4];
#pragma unroll
    for (u32 k = 0; k < 4; k++) sum[0][k] = sum[1][k] = P::sum_zero();
    u32 terms = 0;
    auto count_term = [&] {
        if (++terms % P::sum_terms != 0) return;
#pragma unroll
        for (u32 k = 0; k < 4; k++) path.sum_fold(sum[0][k]), path.sum_fold(sum[1][k]);
    };
    for (u32 n = s.is_listed ? 0 : out_index; n < (s.is_listed ? a.item_count : out_index + 1); n++) {
        key_product_item item = a.uniform;
        if (a.items) {
            item = a.items[n];
            if (item.out_index != out_index) continue;
        } else {
            item.digits = n;
        }
        const KeyProductQuad from(i, item.galois_element, t.log_n);
        const key_table_entry entry = a.keys[item.key];
        if (a.add && limb < s.q_limbs) {
            u64 x[4];
            from.load(x, a.add + (((size_t)item.digits * a.add_stride + limb) << t.log_n));
#pragma unroll
            for (u32 k = 0; k < 4; k++) path.sum_add(sum[0][k], x[k], t.prime[prime].p_product);
            count_term();
        }
        if (!gpu_has_key(entry, s.q_limbs)) continue;
        const u32 key_limbs = entry.q_limb_count + s.p_count;
        const u32 key_limb = limb < s.q_limbs ? limb : entry.q_limb_count + limb - s.q_limbs;
        const u64 *key = (const u64 *)entry.address + ((size_t)key_limb << t.log_n);
        const u64 *digit = a.digits + ((((size_t)item.digits * s.digits) * s.limbs + limb) << t.log_n);
        auto add_product = [&](const KeyFour &four, const u64(&x)[4], u32 c) {
            u64 w[4];
            four.words(w, entry.layout);
#pragma unroll
            for (u32 e = 0; e < 4; e++) path.sum_add(sum[c][e], w[e], x[e]);
        };
        auto load_key = [&](KeyFour &four, u32 d, u32 c) {
            four.load(key + (((size_t)(2 * d + c) * key_limbs) << t.log_n), i, entry.layout);
        };
        if (AHEAD == 1) {
#pragma unroll 2
            for (u32 d = 0; d < s.digits; d++) {
                u64 x[4];
                KeyFour four;
                from.load(x, digit + (((size_t)d * s.limbs) << t.log_n));
                load_key(four, d, 0), add_product(four, x, 0);
                load_key(four, d, 1), add_product(four, x, 1);
                count_term();
            }
            continue;
        }
        for (u32 first = 0; first < s.digits; first += AHEAD) {
            u64 x[AHEAD][4];
            KeyFour four[AHEAD][2];
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                if (first + k >= s.digits) continue;
                from.load(x[k], digit + (((size_t)(first + k) * s.limbs) << t.log_n));
                load_key(four[k][0], first + k, 0), load_key(four[k][1], first + k, 1);
            }
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                if (first + k >= s.digits) continue;
                add_product(four[k][0], x[k], 0), add_product(four[k][1], x[k], 1);
                count_term();
            }
        }
    }
    u64 *out = a.out + ((((size_t)out_index * 2) * s.limbs + limb) << t.log_n) + i;
#pragma unroll
    for (u32 c = 0; c < 2; c++) {
        ulonglong2 *to = reinterpret_cast<ulonglong2 *>(out + ((size_t)(c * s.limbs) << t.log_n));
        to[0] = make_ulonglong2(path.sum_finish(sum[c][0]), path.sum_finish(sum[c][1]));
        to[1] = make_ulonglong2(path.sum_finish(sum[c][2]), path.sum_finish(sum[c][3]));
    }
}

/* Both, grid: (outs, N / (4 threads), limbs): outs fastest, so that what they share, the digits, is still in
 * the cache; four coefficients of one limb of one out, both components. Rings up to 2^14 wait for what each
 * thread has on its way; larger ones want more threads, so fewer registers for each. */
template <class P>
__global__ void __launch_bounds__(key_product_threads)
    key_product(GpuTables t, kernel_key_product_args a, KeyProductShape s) {
    gpu_release_next();
    gpu_wait();
    key_product_of<P, 1>(t, a, s);
}
template <class P>
__global__ void __launch_bounds__(key_product_threads, 6)
    key_product_small(GpuTables t, kernel_key_product_args a, KeyProductShape s) {
    gpu_release_next();
    gpu_wait();
    key_product_of<P, std::is_same<P, PathF64>::value ? 4 : 2>(t, a, s);
}

/* ---- forward rows of all digits, FP64 path: see rows.cuh ---- */

/* grid: (segments / (rows_warps / GROUPS), limbs, chunks of polynomials); a polynomial is a digit of a batch
 * entry */
template <int R_LOG, int GROUPS>
__global__ void __launch_bounds__(rows_warps * 32, 4)
    digit_rows(GpuTables t, kernel_mod_up_args a, u32 level, u32 limbs, u32 digits, u32 chunk) {
    typedef Rows<R_LOG> R;
    __shared__ double tiles[rows_warps][R::tile_words];
    __shared__ u64 nexts[rows_warps][rows_elements];
    __shared__ ulonglong2 stores[rows_warps][rows_elements / 2];
    gpu_release_next();
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, limb = blockIdx.y;
    const u32 segment = blockIdx.x * (rows_warps / GROUPS) + warp / GROUPS, base = segment * rows_elements;
    const u32 prime = limb <= level ? limb : t.q_count + limb - level - 1;
    const u32 end = min(a.batch_count * digits, (blockIdx.z + 1) * chunk);
    u64 *next = nexts[warp] + lane;
    const PathF64 path(t.prime[prime]);
    typename R::template Twiddles<false> w;
    w.load(t, prime, segment, lane);
    gpu_wait();
    const u32 own_digit = limb <= level ? limb / t.digit_size : digits;
    auto is_own = [&](u32 poly) { return poly % digits == own_digit; };
    auto fetch = [&](u32 poly) {
        if (is_own(poly)) {
            const u64 *from = a.a.words + (((size_t)(poly / digits) * a.a_batch_stride + limb) << t.log_n) +
                              base + R::last_lane(lane);
#pragma unroll
            for (int e = 0; e < 8; e++) row_copy8(next + 32 * e, from + R::last_at(e));
        } else {
            const u64 *from = a.out + (((size_t)poly * limbs + limb) << t.log_n) + base + R::first_lane(lane);
#pragma unroll
            for (int e = 0; e < 8; e++) row_copy8(next + 32 * e, from + R::first_at(e));
        }
    };
    u32 poly = blockIdx.z * chunk + warp % GROUPS;
    if (poly < end) fetch(poly);
    row_commit();
    w.finish(path);
    for (; poly < end; poly += GROUPS) {
        u64 words[8];
        row_wait<0>();
#pragma unroll
        for (int e = 0; e < 8; e++) words[e] = next[32 * e];
        if (!is_own(poly)) {
            double x[8];
#pragma unroll
            for (int e = 0; e < 8; e++) x[e] = PathF64::raw(words[e]);
            R::forward(path, w, x, tiles[warp], lane);
#pragma unroll
            for (int e = 0; e < 8; e++) words[e] = path.finish(x[e]);
        }
        if (poly + GROUPS < end) fetch(poly + GROUPS);
        row_commit();
        row_store_words<R_LOG>(a.out + (((size_t)poly * limbs + limb) << t.log_n) + base, words, stores[warp],
                               lane);
    }
}

template <int R_LOG, int GROUPS>
cudaError_t digit_rows_enqueue(cudaStream_t stream, const GpuTables &t, const kernel_mod_up_args &a,
                               u32 level, u32 limbs, u32 digits) {
    const u32 polys = a.batch_count * digits;
    const u32 across = ((1u << t.log_n) / rows_elements) / (rows_warps / GROUPS);
    const u32 chunks =
        min((polys + GROUPS - 1) / GROUPS, (rows_blocks_wanted + across * limbs - 1) / (across * limbs));
    const u32 chunk = (polys + chunks - 1) / chunks;
    return gpu_launch(digit_rows<R_LOG, GROUPS>, dim3(across, limbs, (polys + chunk - 1) / chunk),
                      rows_warps * 32, stream, t.log_n, t, a, level, limbs, digits, chunk);
}

cudaError_t digit_rows_run(cudaStream_t stream, const GpuTables &t, const kernel_mod_up_args &a, u32 level,
                           u32 limbs, u32 digits) {
    const bool few = ((u64)limbs << t.log_n) <= rows_few_elements;
#define DIGIT_ROWS(R)                                                                                        \
    (few ? digit_rows_enqueue<R, 4>(stream, t, a, level, limbs, digits)                                      \
         : digit_rows_enqueue<R, 1>(stream, t, a, level, limbs, digits))
    ROWS_SWITCH(DIGIT_ROWS)
#undef DIGIT_ROWS
}

/* ---- launches ---- */

struct UpShape {
    u32 level, limbs, digits;
};
UpShape up_shape(const GpuTables &t, u32 level) {
    return {level, level + 1 + t.p_count, (level + t.digit_size) / t.digit_size};
}

/* MOD_UP as far as the forward columns. is_begun: from the inverse columns on */
cudaError_t up_columns(cudaStream_t stream, const CudaTables *tables, const kernel_mod_up_args &a,
                       const key_product_item *items, u32 galois, bool is_begun = false) {
    const GpuTables &t = tables->device;
    const UpShape s = up_shape(t, a.a.basis.q_count - 1);
    const u32 sources = a.batch_count * (s.level + 1), jobs = a.batch_count * s.digits * s.limbs;
    cudaError_t rc;
    if (!is_begun &&
        (rc = ntt_run<true, false, 0>(stream, tables, ModUpInverseIO<false>{a, s.level, items, galois},
                                      sources)) != cudaSuccess)
        return rc;
    const u32 most = min(t.digit_size, s.level + 1), least = s.level + 1 - (s.digits - 1) * t.digit_size;
    if (!convert_fuses(tables, most) &&
        (rc = ntt_run<true, true, 0>(stream, tables, ModUpInverseIO<true>{a, s.level, items, galois},
                                     sources)) != cudaSuccess)
        return rc;
    rc = convert_run(stream, tables, ModUpConvertIO{a, s.level, s.limbs, s.digits}, most,
                     a.batch_count * s.digits, s.limbs - min(least, most));
    if (rc == cudaErrorNotSupported)
        rc = ntt_run<false, true, REDUCE_AFTER_REDUCED>(
            stream, tables, ModUpForwardIO<false>{a, s.level, s.limbs, s.digits}, jobs);
    return rc;
}

kernel_mod_up_args up_of(const GpuTables &t, const kernel_switch_product_args &a) {
    const u32 q_limbs = a.a.basis.q_count;
    return {a.tables,      a.scratch + (((size_t)a.batch_count * q_limbs) << t.log_n),
            a.a,           a.a_batch_stride,
            a.batch_count, a.scratch};
}

} // namespace

cudaError_t cuda_mod_up(cudaStream_t stream, const kernel_mod_up_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    const UpShape s = up_shape(tables->device, a->a.basis.q_count - 1);
    const cudaError_t rc = up_columns(stream, tables, *a, nullptr, 1);
    if (rc != cudaSuccess) return rc;
    if (tables->is_f64) return digit_rows_run(stream, tables->device, *a, s.level, s.limbs, s.digits);
    return ntt_run_i64<false, false, REDUCE_AFTER_PASS>(stream, tables,
                                                        ModUpForwardIO<true>{*a, s.level, s.limbs, s.digits},
                                                        a->batch_count * s.digits * s.limbs);
}

cudaError_t cuda_key_product(cudaStream_t stream, const kernel_key_product_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    const GpuTables &t = tables->device;
    KeyProductShape s = {a->level, a->level + 1, 0, 0, a->is_public ? 0 : t.p_count, 0};
    s.limbs = s.q_limbs + s.p_count;
    s.digits = a->is_public ? 1 : (a->level + t.digit_size) / t.digit_size;
    s.is_listed = a->items != nullptr && a->item_count != a->out_count;
    for (u32 n = 0; a->items && n < a->item_count && !s.is_listed; n++)
        s.is_listed = a->items_host[n].out_index != n;
    const dim3 grid(a->out_count, (1u << t.log_n) / (4 * key_product_threads), s.limbs);
    if (t.log_n > 14) LAUNCH_PATH(tables, key_product, grid, key_product_threads, stream, t, *a, s);
    LAUNCH_PATH(tables, key_product_small, grid, key_product_threads, stream, t, *a, s);
}

cudaError_t cuda_narrow_key(cudaStream_t stream, const kernel_narrow_key_args *a) {
    const GpuTables &t = cuda_tables(a->tables)->device;
    return gpu_launch(
        narrow_key,
        dim3((1u << t.log_n) / KEY_SPLIT_RESIDUES, basis_limb_count(a->key.basis), a->key.component_count),
        KEY_SPLIT_RESIDUES, stream, t.log_n, t, a->key);
}

cudaError_t cuda_switch_product(cudaStream_t stream, const kernel_switch_product_args *a) {
    const CudaTables *tables = cuda_tables(a->tables);
    const GpuTables &t = tables->device;
    const kernel_mod_up_args up = up_of(t, *a);
    const UpShape s = up_shape(t, a->a.basis.q_count - 1);
    cudaError_t rc;
    if (tables->is_f64) {
        if ((rc = up_columns(stream, tables, up, a->items, a->uniform.galois_element)) != cudaSuccess)
            return rc;
        RowProductArgs r = {};
        r.a = *a, r.digits = up.out, r.level = s.level, r.limbs = s.limbs, r.digit_count = s.digits;
        return gpu_row_product(stream, t, r);
    }
    if ((rc = cuda_mod_up(stream, &up)) != cudaSuccess) return rc;
    kernel_key_product_args product = {};
    product.tables = a->tables, product.out = a->out, product.out_count = a->is_sum ? 1 : a->batch_count;
    product.level = s.level, product.digits = up.out, product.digits_count = a->batch_count;
    product.keys = a->keys, product.key_count = a->key_count;
    product.items = a->items, product.items_host = a->items_host, product.item_count = a->batch_count;
    product.uniform = a->uniform;
    return cuda_key_product(stream, &product);
}

cudaError_t cuda_key_switch(cudaStream_t stream, const kernel_key_switch_args *a, bool is_begun) {
    const CudaTables *tables = cuda_tables(a->tables);
    const GpuTables &t = tables->device;
    const UpShape s = up_shape(t, a->a.basis.q_count - 1);
    /* scratch: that of SWITCH_PRODUCT, the product, that of MOD_DOWN */
    const u32 q_limbs = s.level + 1, batch = a->batch_count;
    u64 *product = a->scratch + (((size_t)batch * (q_limbs + (size_t)s.digits * s.limbs)) << t.log_n);
    kernel_switch_product_args up = {};
    up.tables = a->tables, up.out = product, up.a = a->a, up.a_batch_stride = a->a_batch_stride;
    up.batch_count = batch, up.keys = a->keys, up.key_count = a->key_count, up.scratch = a->scratch;
    up.uniform.key = a->key, up.uniform.galois_element = a->galois_element;
    kernel_mod_down_args down = {};
    down.tables = a->tables, down.out = a->out, down.add = a->add;
    down.a.words = product, down.a.component_count = 2, down.a.component_stride = s.limbs;
    down.a.basis.q_count = q_limbs, down.a.basis.p_count = t.p_count;
    down.add_galois_element = a->galois_element, down.batch_count = batch;
    down.out_batch_stride = a->out_batch_stride, down.a_batch_stride = 2 * s.limbs;
    down.add_batch_stride = a->add_batch_stride, down.with_rescale = a->with_rescale;
    down.scratch = product + (((size_t)batch * 2 * s.limbs) << t.log_n);
    cudaError_t rc;
    if (!tables->is_f64) {
        if ((rc = cuda_switch_product(stream, &up)) != cudaSuccess) return rc;
        return cuda_mod_down(stream, &down);
    }
    const kernel_mod_up_args columns = up_of(t, up);
    if ((rc = up_columns(stream, tables, columns, nullptr, a->galois_element, is_begun)) != cudaSuccess)
        return rc;
    const DivideArgs d = gpu_divide_mod_down(tables, &down);
    RowProductArgs r = {};
    r.a = up, r.digits = columns.out, r.level = s.level, r.limbs = s.limbs, r.digit_count = s.digits;
    r.y = d.y, r.down = d.conversion, r.sources = d.sources, r.add = a->add;
    r.add_batch_stride = a->add_batch_stride, r.with_rescale = a->with_rescale;
    if ((rc = gpu_row_product(stream, t, r)) != cudaSuccess) return rc;
    return gpu_divide(stream, tables, d, true);
}
