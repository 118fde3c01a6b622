/*
 * The forward rows of all digits of a key switch and their product with the key in one kernel, FP64 path:
 * digits never go to memory as words. Keys are read as words or split (key_layout); where limbs are divided
 * by (KEY_SWITCH), their sums go on into the inverse rows.
 */
#include "kernels/cuda/row_product.cuh"
#include "kernels/cuda/rows.cuh"

namespace {

/* One digit of a key in one limb, as a warp reads it. */
struct RowKey {
    enum State { ABSENT, WORDS, SPLIT };
    /* both components' residues from `base` on into shared memory */
    template <int R_LOG>
    static __device__ __forceinline__ State fetch(ulonglong2 (*slots)[rows_elements / 2], const GpuTables &t,
                                                  const RowProductArgs &r, const key_product_item &item,
                                                  u32 digit, u32 limb, u32 base, u32 lane, u64 once) {
        const key_table_entry entry = r.a.keys[item.key];
        if (!gpu_has_key(entry, r.level + 1)) return ABSENT;
        const u32 key_limbs = entry.q_limb_count + t.p_count;
        const u32 key_limb = limb <= r.level ? limb : entry.q_limb_count + limb - r.level - 1;
        const u64 *from =
            (const u64 *)entry.address + (((size_t)(2 * digit) * key_limbs + key_limb) << t.log_n) + base;
        const size_t component = (size_t)key_limbs << t.log_n;
        if (entry.layout == KEY_WORDS) {
            row_copy_words<R_LOG>(slots[0], from, lane, once);
            row_copy_words<R_LOG>(slots[1], from + component, lane, once);
            return WORDS;
        }
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            const ulonglong2 *block = reinterpret_cast<const ulonglong2 *>(from + (c ? component : 0));
#pragma unroll
            for (u32 i = 0; i < 3; i++)
                row_copy16_once(slots[c] + lane + 32 * i, block + lane + 32 * i, once);
            if (lane < (KEY_SPLIT_RESIDUES / 4) / 16)
                row_copy16_once(slots[c] + lane + 96, block + lane + 96, once);
        }
        return SPLIT;
    }
    /* The four residues from last-order element 4 u on: they are neighbours. */
    template <int R_LOG>
    static __device__ __forceinline__ void four(double (&x)[4], const ulonglong2 *slots, State state, int u,
                                                u32 lane) {
        typedef Rows<R_LOG> R;
        if (state == WORDS) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const ulonglong2 pair = slots[R::pair_slot(lane, 2 * u + j)];
                x[2 * j] = PathF64::from_word(pair.x), x[2 * j + 1] = PathF64::from_word(pair.y);
            }
            return;
        }
        const unsigned char *block = reinterpret_cast<const unsigned char *>(slots);
        const u32 at = (R::last_lane(lane) + R::last_at(4 * u)) / 4;
        const uint4 low = reinterpret_cast<const uint4 *>(block)[at];
        const uint2 middle = reinterpret_cast<const uint2 *>(block + KEY_SPLIT_MIDDLE)[at];
        const u32 top = block[KEY_SPLIT_TOP + at];
        x[0] = join(low.x, middle.x & 0xffff, top << 16);
        x[1] = join(low.y, middle.x >> 16, top << 14);
        x[2] = join(low.z, middle.y & 0xffff, top << 12);
        x[3] = join(low.w, middle.y >> 16, top << 10);
    }

  private:
    static __device__ __forceinline__ double join(u32 low, u32 middle, u32 top) {
        return __hiloint2double((int)(0x43300000u | middle | (top & 0x30000)), (int)low) - 4503599627370496.0;
    }
};

/* grid: (segments / (rows_warps / GROUPS), limbs, outs). GROUPS warps share a segment of one out and take its
 * digits in turn; their sums meet in shared memory at the end. ONE: no warp has more than one, so nothing is
 * fetched ahead and no sum kept, and five blocks have room on a multiprocessor. */
template <int R_LOG, int GROUPS, bool DIVIDES, bool ONE>
__global__ void __launch_bounds__(rows_warps * 32, ONE ? 5 : 3) row_product(GpuTables t, RowProductArgs r) {
    typedef Rows<R_LOG> R;
    __shared__ __align__(16) double tiles[rows_warps][R::tile_words];
    __shared__ ulonglong2 nexts[ONE ? 1 : rows_warps][ONE ? 1 : rows_elements / 2],
        keys[rows_warps][2][rows_elements / 2];
    gpu_release_next();
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = warp % GROUPS;
    const u32 segment = blockIdx.x * (rows_warps / GROUPS) + warp / GROUPS, base = segment * rows_elements;
    /* the limbs that have most to do first */
    const u32 limb = gridDim.y - 1 - blockIdx.y, out = blockIdx.z;
    const u32 prime = limb <= r.level ? limb : t.q_count + limb - r.level - 1;
    const u32 end_entry = r.a.is_sum ? r.a.batch_count : out + 1;
    const u32 own_digit = limb <= r.level ? limb / t.digit_size : r.digit_count;
    double *tile = tiles[warp];
    u64 *next = reinterpret_cast<u64 *>(nexts[ONE ? 0 : warp]) + lane;
    const u64 once = row_once();
    const PathF64 path(t.prime[prime]);
    const u32 last = base + R::last_lane(lane);
    /* the digit that this warp has next, of which entry */
    u32 entry = r.a.is_sum ? 0 : out, digit = group;
    auto settle = [&] {
        while (digit >= r.digit_count) digit -= r.digit_count, entry++;
        return entry < end_entry;
    };
    auto item = [&] { return r.a.items ? r.a.items[entry] : r.a.uniform; };
    auto fetch_digit = [&] {
        if (digit == own_digit) {
            const u32 g = item().galois_element;
            const u64 *from = r.a.a.words + (((size_t)entry * r.a.a_batch_stride + limb) << t.log_n);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const u32 i = last + R::last_at(e);
                row_copy8(next + 32 * e, from + (g == 1 ? i : gpu_permute(i, g, t.log_n)));
            }
        } else {
            const u64 *from = r.digits +
                              ((((size_t)entry * r.digit_count + digit) * r.limbs + limb) << t.log_n) + base +
                              R::first_lane(lane);
#pragma unroll
            for (int e = 0; e < 8; e++) row_copy8_once(next + 32 * e, from + R::first_at(e), once);
        }
    };
    auto fetch_key = [&] {
        return RowKey::fetch<R_LOG>(keys[warp], t, r, item(), digit, limb, base, lane, once);
    };
    double sum[2][8];
#pragma unroll
    for (int e = 0; e < 8; e++) sum[0][e] = sum[1][e] = 0.0;
    if constexpr (ONE) {
        typename R::template Twiddles<false> w;
        w.load(t, prime, segment, lane);
        const bool has_digit = settle();
        /* ahead of the wait: what writes keys lets no kernel start early (device_cuda.cu) */
        RowKey::State key = RowKey::ABSENT;
        if (has_digit) key = fetch_key();
        row_commit();
        gpu_wait();
        if (has_digit) {
            const bool own = digit == own_digit;
            double x[8];
            if (own) {
                const u32 g = item().galois_element;
                const u64 *from = r.a.a.words + (((size_t)entry * r.a.a_batch_stride + limb) << t.log_n);
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    const u32 i = last + R::last_at(e);
                    x[e] = path.load(from[g == 1 ? i : gpu_permute(i, g, t.log_n)]);
                }
            } else {
                raw_load<PathF64>(
                    x, r.digits + ((((size_t)entry * r.digit_count + digit) * r.limbs + limb) << t.log_n),
                    base + R::first_lane(lane), R::first_step);
            }
            w.finish(path);
            if (!own) {
                R::forward(path, w, x, tile, lane);
#pragma unroll
                for (int e = 0; e < 8; e++) x[e] = path.reduce(x[e]);
            }
            row_wait<0>();
            __syncwarp();
            if (key != RowKey::ABSENT) {
#pragma unroll
                for (int u = 0; u < 2; u++) {
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        double word[4];
                        RowKey::four<R_LOG>(word, keys[warp][c], key, u, lane);
#pragma unroll
                        for (int e = 0; e < 4; e++) sum[c][4 * u + e] = path.mul(word[e], x[4 * u + e]);
                    }
                }
            }
            __syncwarp(); /* what was read is written next */
        }
    } else {
        typename R::template Twiddles<false> w;
        w.load(t, prime, segment, lane);
        gpu_wait();
        u32 terms = 0;
        bool more = settle();
        RowKey::State key = RowKey::ABSENT;
        if (more) fetch_digit();
        row_commit();
        if (more) key = fetch_key();
        row_commit();
        w.finish(path);
        while (more) {
            const bool own = digit == own_digit;
            digit += GROUPS;
            more = settle();
            double x[8];
            row_wait<1>();
            if (own) {
#pragma unroll
                for (int e = 0; e < 8; e++) x[e] = path.load(next[32 * e]);
            } else {
#pragma unroll
                for (int e = 0; e < 8; e++) x[e] = PathF64::raw(next[32 * e]);
                R::forward(path, w, x, tile, lane);
#pragma unroll
                for (int e = 0; e < 8; e++) x[e] = path.reduce(x[e]);
            }
            if (more) fetch_digit();
            row_commit();
            row_wait<1>();
            __syncwarp();
            if (key != RowKey::ABSENT) {
#pragma unroll
                for (int u = 0; u < 2; u++) {
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        double word[4];
                        RowKey::four<R_LOG>(word, keys[warp][c], key, u, lane);
#pragma unroll
                        for (int e = 0; e < 4; e++) sum[c][4 * u + e] += path.mul(word[e], x[4 * u + e]);
                    }
                }
                if (++terms % PathF64::sum_terms == 0) {
#pragma unroll
                    for (int e = 0; e < 8; e++)
                        sum[0][e] = path.reduce(sum[0][e]), sum[1][e] = path.reduce(sum[1][e]);
                }
            }
            __syncwarp();
            key = RowKey::ABSENT;
            if (more) key = fetch_key();
            row_commit();
        }
    }
    if constexpr (!ONE) { /* one product is below q: four of them are for the last reduction */
#pragma unroll
        for (int e = 0; e < 8; e++) sum[0][e] = path.reduce(sum[0][e]), sum[1][e] = path.reduce(sum[1][e]);
    }
    const bool divides = DIVIDES && (limb > r.level || (r.with_rescale && limb == r.level));
    typename R::template Twiddles<true> w_inverse;
    if constexpr (DIVIDES) { /* on their way while warps wait for each other */
        if (divides) w_inverse.load(t, prime, segment, lane);
    }
    if constexpr (GROUPS > 1) {
        double *mine = reinterpret_cast<double *>(keys[warp]);
#pragma unroll
        for (int e = 0; e < 8; e++) mine[32 * e + lane] = sum[0][e], mine[256 + 32 * e + lane] = sum[1][e];
        __syncthreads();
        if (group > 1) return;
            /* from here on the first two warps of a segment have a component each */
#pragma unroll
        for (int e = 0; e < 8; e++) {
            double all = 0.0;
#pragma unroll
            for (u32 g = 0; g < GROUPS; g++)
                all += reinterpret_cast<double *>(keys[warp - group + g])[256 * group + 32 * e + lane];
            sum[0][e] = path.reduce(all);
        }
    }
    if (!divides) {
        u64 *to = r.a.out + ((((size_t)out * 2) * r.limbs + limb) << t.log_n) + base;
#pragma unroll
        for (u32 c = 0; c < (GROUPS > 1 ? 1u : 2u); c++) {
            const u32 component = GROUPS > 1 ? group : c;
            u64 words[8];
#pragma unroll
            for (int e = 0; e < 8; e++) words[e] = path.canonical(sum[c][e]);
            row_store_words<R_LOG>(to + ((size_t)(component * r.limbs) << t.log_n), words,
                                   ONE ? reinterpret_cast<ulonglong2 *>(tile) : nexts[ONE ? 0 : warp], lane);
        }
        return;
    }
    if constexpr (DIVIDES) {
        u32 source = 0;
        while (source + 1 < r.sources && __ldg(r.down->source + source) != prime) source++;
        const double p_product = path.constant(t.prime[prime].p_product);
        w_inverse.finish(path);
#pragma unroll
        for (u32 c = 0; c < (GROUPS > 1 ? 1u : 2u); c++) {
            const u32 component = GROUPS > 1 ? group : c;
            if (limb <= r.level && r.add.words && component < r.add.component_count) {
                const u32 g = r.a.uniform.galois_element;
                const u64 *from =
                    r.add.words +
                    (((size_t)out * r.add_batch_stride + (size_t)component * r.add.component_stride + limb)
                     << t.log_n);
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    const u32 i = last + R::last_at(e);
                    const u64 word = from[g == 1 ? i : gpu_permute(i, g, t.log_n)];
                    sum[c][e] = path.reduce(sum[c][e] + path.mul(path.load(word), p_product));
                }
            }
            R::inverse(path, w_inverse, sum[c], tile, lane);
            u64 *to = r.y + ((((size_t)out * 2 + component) * r.sources + source) << t.log_n) + base +
                      R::first_lane(lane);
#pragma unroll
            for (int e = 0; e < 8; e++) to[R::first_at(e)] = PathF64::unraw(sum[c][e]);
        }
    }
}

template <int R_LOG, bool DIVIDES>
cudaError_t row_product_groups(cudaStream_t stream, const GpuTables &t, const RowProductArgs &r) {
    const u32 outs = r.a.is_sum ? 1 : r.a.batch_count, segments = (1u << t.log_n) / rows_elements;
    const u64 elements = ((u64)outs * r.limbs) << t.log_n;
    const u32 steps = r.digit_count * (r.a.is_sum ? r.a.batch_count : 1);
    if (steps > 2 && steps <= 4) {
        /* a warp for each digit where all of them run at once */
        const auto one = row_product<R_LOG, 4, DIVIDES, true>;
        static const u32 places = gpu_places(reinterpret_cast<const void *>(one), rows_warps * 32);
        if (segments * r.limbs * outs <= places)
            return gpu_launch(one, dim3(segments, r.limbs, outs), rows_warps * 32, stream, t.log_n, t, r);
    }
    /* warps share the digits of a segment where there would be few of them otherwise; blocks are few as well,
     * so more than one wave of them costs more than it gives */
    if (steps > 2 && elements <= rows_few_elements / 4)
        return gpu_launch(row_product<R_LOG, 4, DIVIDES, false>, dim3(segments, r.limbs, outs),
                          rows_warps * 32, stream, t.log_n, t, r);
    if (steps > 1 && elements <= rows_few_elements)
        return gpu_launch(row_product<R_LOG, 2, DIVIDES, false>, dim3(segments / 2, r.limbs, outs),
                          rows_warps * 32, stream, t.log_n, t, r);
    return gpu_launch(row_product<R_LOG, 1, DIVIDES, false>, dim3(segments / 4, r.limbs, outs),
                      rows_warps * 32, stream, t.log_n, t, r);
}

} // namespace

cudaError_t gpu_row_product(cudaStream_t stream, const GpuTables &t, const RowProductArgs &r) {
#define ROW_PRODUCT(R)                                                                                       \
    (r.y ? row_product_groups<R, true>(stream, t, r) : row_product_groups<R, false>(stream, t, r))
    ROWS_SWITCH(ROW_PRODUCT)
#undef ROW_PRODUCT
}
