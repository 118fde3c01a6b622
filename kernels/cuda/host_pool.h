/* Pinned memory kept for the next who asks for it. */
#ifndef CKKS_CUDA_HOST_POOL_H
#define CKKS_CUDA_HOST_POOL_H

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

/* Pinned memory that was given back, for the next who asks for as much: allocating it waits for the whole
 * card, which a request must not. Blocks of one size recur (results of a model), so an exact match is enough.
 */
struct HostPool {
    struct Block {
        void *address;
        uint64_t bytes;
    };
    static const size_t blocks_max = 256;
    static const uint64_t bytes_max = 256ull << 20;
    std::mutex lock;
    std::vector<Block> free, live;
    uint64_t free_bytes = 0;

    void *take(uint64_t bytes) {
        std::lock_guard<std::mutex> hold(lock);
        for (size_t i = free.size(); i-- > 0;) {
            if (free[i].bytes != bytes) continue;
            void *address = free[i].address;
            live.push_back(free[i]);
            free.erase(free.begin() + (long)i);
            free_bytes -= bytes;
            return address;
        }
        return nullptr;
    }
    void add(void *address, uint64_t bytes) {
        std::lock_guard<std::mutex> hold(lock);
        live.push_back({address, bytes});
    }
    /* true if the pool kept it; else the caller frees it */
    bool give(void *address) {
        std::lock_guard<std::mutex> hold(lock);
        for (size_t i = live.size(); i-- > 0;) {
            if (live[i].address != address) continue;
            const Block block = live[i];
            live.erase(live.begin() + (long)i);
            if (free.size() >= blocks_max || free_bytes + block.bytes > bytes_max) return false;
            free.push_back(block);
            free_bytes += block.bytes;
            return true;
        }
        return false;
    }
};

#endif
