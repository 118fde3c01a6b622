/*
 * The threads of a block, one after the other: each goes on until it waits for its warp, its block or the
 * kernel before, so what one writes and another reads without a wait in between is read too early or too
 * late. Blocks and threads begin in an order that changes: first to last, last to first, shuffled; and warps
 * go in step, or one of them far ahead.
 *
 * One kernel is executed at a time in this process, and one block of it: shared memory is static.
 */
#include "kernels/cuda/emulated/threads.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#if defined __SANITIZE_ADDRESS__
#define HAS_ASAN 1
#elif defined __has_feature
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifdef HAS_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#error "the emulated card switches stacks on x86-64 only"
#endif

thread_local EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

namespace {

/* registers that a call keeps, on the stack that is left; then those of the stack that is entered */
extern "C" void emulated_switch(void **leave, void *enter);
asm(".text\n.hidden emulated_switch\n.globl emulated_switch\n.type emulated_switch,@function\n"
    "emulated_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size emulated_switch, . - emulated_switch\n");

#ifdef HAS_ASAN
const size_t stack_bytes = 128 << 10;
#else
const size_t stack_bytes = 32 << 10;
#endif
const uint64_t canary = 0x5bd1e995c0ffee11u;
const unsigned warp_size = 32;

enum State { READY, AT_WARP, AT_BLOCK, AT_KERNEL, DONE };

struct Copy {
    void *to;
    const void *from;
    unsigned bytes;
};

struct Thread {
    State state;
    unsigned index;    /* in its block */
    const char *where; /* it waits */
    void *stack_pointer, *fake_stack;
    std::unique_ptr<uint64_t[]> stack;
    std::vector<Copy> copies;      /* begun and not done */
    std::vector<size_t> committed; /* for each group that is, how many copies of `copies` end it */
    unsigned exchanges;
};

struct alignas(64) Warp {
    unsigned char given[2][warp_size][64];
};

/* The threads of one block at work; memory is kept for the next. */
class Block {
  public:
    const EmulatedLaunch *launch = nullptr;
    bool is_late = false;    /* copies are done when they are waited for */
    bool runs_ahead = false; /* a warp goes as far as it can before another begins; else all go in step */

    void begin(const EmulatedLaunch &l, unsigned index, unsigned turn);
    /* true: all have ended. false: those that have not wait for the kernel before (if `holds`). */
    bool run(bool holds);
    /* A thread stops; it goes on once run makes it READY. */
    void pause(State state, const char *where);
    /* in a thread: the kernel before must have ended */
    void hold() {
        if (is_held) pause(AT_KERNEL, "its wait for the kernel before");
    }
    /* after a trap: those that have not ended never will */
    void abandon();
    Thread *current = nullptr;
    std::vector<Warp> warps;

  private:
    std::vector<Thread> threads;
    unsigned count = 0, turn = 0;
    EmulatedIndex block_index = {};
    bool is_held = false, is_over = false;
    void *own_stack_pointer = nullptr, *own_fake_stack = nullptr;
    const void *own_stack = nullptr;
    size_t own_stack_bytes = 0;

    friend void enter();
    void switch_to(Thread &t);
    unsigned run_threads(unsigned first, unsigned end);
    unsigned run_warp(unsigned first);
    unsigned warp_end(unsigned first) const;
    bool release_warp(unsigned first);
    bool release_warps();
    bool release(State from, bool needs_all);
    unsigned place(unsigned i, unsigned n) const;
    [[noreturn]] void stuck() const;
};

/* the block whose threads run on this thread of the process */
thread_local Block *block;
/* one kernel at a time */
std::mutex &one_kernel = *new std::mutex; /* never destroyed: streams may outlive main */
Block *const blocks = new Block[2];       /* one that runs, one that has begun early; guarded by one_kernel */
struct Begun {
    Block *block = nullptr; /* of `launch`: waits for the kernel before it */
    const EmulatedLaunch *launch = nullptr;
};
thread_local Begun begun; /* this thread holds one_kernel while there is one */
uint64_t launch_count;    /* guarded by one_kernel */
std::atomic<bool> is_lost{false};

#ifdef HAS_ASAN
void leave_to(void **fake, const void *stack, size_t bytes) {
    __sanitizer_start_switch_fiber(fake, stack, bytes);
}
void arrive(void *fake, const void **from, size_t *bytes) {
    __sanitizer_finish_switch_fiber(fake, from, bytes);
}
void forget(void *stack, size_t bytes) {
    __asan_unpoison_memory_region(stack, bytes);
}
#else
void leave_to(void **, const void *, size_t) {}
void arrive(void *, const void **, size_t *) {}
void forget(void *, size_t) {}
#endif

void do_copies(Thread &t, size_t count) {
    for (size_t i = 0; i < count; i++) memcpy(t.copies[i].to, t.copies[i].from, t.copies[i].bytes);
    t.copies.erase(t.copies.begin(), t.copies.begin() + (long)count);
}

/* where a thread begins */
void enter() {
    Block *b = block;
    arrive(nullptr, &b->own_stack, &b->own_stack_bytes);
    b->launch->body();
    Thread *t = b->current;
    if (b->is_held) emulated_fail("a thread ended without its wait for the kernel before", t->where);
    do_copies(*t, t->copies.size());
    t->state = DONE;
    leave_to(nullptr, b->own_stack, b->own_stack_bytes);
    emulated_switch(&t->stack_pointer, b->own_stack_pointer);
    abort();
}

void Block::begin(const EmulatedLaunch &l, unsigned index, unsigned turn_) {
    launch = &l, turn = turn_, count = l.block.x;
    block_index = {index % l.grid.x, index / l.grid.x % l.grid.y, index / l.grid.x / l.grid.y};
    is_late = turn & 1, runs_ahead = turn >> 1 & 1, is_held = false, is_over = false;
    if (threads.size() < count) threads.resize(count);
    warps.resize((count + warp_size - 1) / warp_size);
    for (unsigned i = 0; i < count; i++) {
        Thread &t = threads[i];
        t.index = i;
        t.state = READY, t.where = "", t.exchanges = 0, t.fake_stack = nullptr;
        t.copies.clear(), t.committed.clear();
        const size_t words = stack_bytes / 8;
        if (!t.stack) t.stack.reset(new uint64_t[words]);
        t.stack[0] = canary;
        uint64_t *top = t.stack.get() + words - 2; /* its address is a multiple of 16 */
        *--top = 0;                                /* enter returns to nowhere */
        *--top = reinterpret_cast<uint64_t>(enter);
        for (int r = 0; r < 6; r++) *--top = 0;
        t.stack_pointer = top;
    }
}

void Block::switch_to(Thread &t) {
    current = &t, block = this;
    const dim3 &size = launch->block, &grid = launch->grid;
    threadIdx = {t.index, 0, 0}, blockIdx = block_index;
    blockDim = {size.x, size.y, size.z}, gridDim = {grid.x, grid.y, grid.z};
    leave_to(&own_fake_stack, t.stack.get(), stack_bytes);
    emulated_switch(&own_stack_pointer, t.stack_pointer);
    arrive(own_fake_stack, nullptr, nullptr);
    if (t.stack[0] != canary) emulated_fail("a thread needs more stack", t.where);
}

void Block::pause(State state, const char *where) {
    Thread *t = current;
    t->state = state, t->where = where;
    leave_to(&t->fake_stack, own_stack, own_stack_bytes);
    emulated_switch(&t->stack_pointer, own_stack_pointer);
    arrive(t->fake_stack, &own_stack, &own_stack_bytes);
}

/* a permutation of 0 .. n - 1 */
unsigned Block::place(unsigned i, unsigned n) const {
    if (turn % 3 == 0) return i;
    if (turn % 3 == 1) return n - 1 - i;
    return n % 17 == 0 ? i : (unsigned)((17ull * i + turn) % n);
}

/* Threads [first, end), each as far as it goes. Returns how many have not ended. */
unsigned Block::run_threads(unsigned first, unsigned end) {
    unsigned live = 0;
    for (unsigned i = 0; i < end - first && !is_over; i++) {
        Thread &t = threads[first + place(i, end - first)];
        if (t.state == READY) switch_to(t);
        live += t.state != DONE;
    }
    return live;
}

unsigned Block::warp_end(unsigned first) const {
    return first + warp_size < count ? first + warp_size : count;
}

/* A warp all of whose threads wait goes on. */
bool Block::release_warp(unsigned first) {
    const unsigned end = warp_end(first);
    const char *where = nullptr;
    for (unsigned i = first; i < end; i++) {
        const Thread &t = threads[i];
        if (t.state == AT_WARP && !where) where = t.where;
        if (t.state == AT_WARP && strcmp(where, t.where) != 0) stuck();
    }
    for (unsigned i = first; i < end; i++)
        if (!where || (threads[i].state != AT_WARP && threads[i].state != DONE)) return false;
    for (unsigned i = first; i < end; i++)
        if (threads[i].state == AT_WARP) threads[i].state = READY;
    return true;
}
bool Block::release_warps() {
    bool is_any = false;
    for (unsigned first = 0; first < count; first += warp_size) is_any = release_warp(first) || is_any;
    return is_any;
}
/* A warp alone, up to where it waits for others. */
unsigned Block::run_warp(unsigned first) {
    unsigned live;
    do live = run_threads(first, warp_end(first));
    while (!is_over && release_warp(first));
    return live;
}
/* Threads that wait there go on; needs_all: if nobody waits elsewhere. */
bool Block::release(State from, bool needs_all) {
    bool is_any = false;
    for (unsigned i = 0; i < count && needs_all; i++)
        if (threads[i].state != from && threads[i].state != DONE) return false;
    for (unsigned i = 0; i < count; i++)
        if (threads[i].state == from) threads[i].state = READY, is_any = true;
    return is_any;
}

bool Block::run(bool holds) {
    is_held = holds;
    if (!holds) (void)release(AT_KERNEL, false);
    for (;;) {
        unsigned live = 0;
        if (runs_ahead)
            for (unsigned i = 0; i < warps.size(); i++)
                live += run_warp(place(i, (unsigned)warps.size()) * warp_size);
        else
            live = run_threads(0, count);
        if (is_over || live == 0) return true;
        if (release_warps() || release(AT_BLOCK, true)) continue;
        for (unsigned i = 0; i < count; i++)
            if (threads[i].state == AT_KERNEL) return false;
        stuck();
    }
}

void Block::abandon() {
    is_over = true;
    for (Thread &t : threads)
        if (t.stack) forget(t.stack.get(), stack_bytes);
}

void Block::stuck() const {
    static const char *const names[] = {"runs", "waits for its warp", "waits for its block",
                                        "waits for the kernel before", "has ended"};
    for (unsigned i = 0; i < count; i++)
        if (i == 0 || threads[i].state != threads[i - 1].state ||
            strcmp(threads[i].where, threads[i - 1].where) != 0)
            fprintf(stderr, "  from thread %u on: %s, %s\n", i, names[threads[i].state], threads[i].where);
    emulated_fail("threads of a block wait for each other for ever", "");
}

} // namespace

void emulated_fail(const char *what, const char *where) {
    fprintf(stderr, "emulated card: %s (%s)\n", what, where);
    abort();
}
bool emulated_is_lost() {
    return is_lost.load();
}
void emulated_trap(const char *file, int line) {
    fprintf(stderr, "emulated card: trap at %s:%d, block (%u, %u, %u), thread %u\n", file, line, blockIdx.x,
            blockIdx.y, blockIdx.z, threadIdx.x);
    is_lost.store(true);
    Block *b = block;
    b->abandon();
    b->pause(DONE, file);
    abort();
}

void emulated_sync_block(const char *where) {
    block->pause(AT_BLOCK, where);
}
void emulated_sync_warp(const char *where) {
    block->pause(AT_WARP, where);
}
void emulated_wait() {
    block->hold();
}

const unsigned char (*emulated_exchange(const void *given, size_t bytes, const char *where))[64] {
    Block *b = block;
    Thread *t = b->current;
    const unsigned warp = t->index / warp_size, lane = t->index % warp_size;
    if ((warp + 1) * warp_size > b->launch->block.x)
        emulated_fail("an exchange in a warp that is not full", where);
    auto &slots = b->warps[warp].given[t->exchanges++ & 1]; /* who is slow may still read the other */
    memcpy(slots[lane], given, bytes);
    b->pause(AT_WARP, where);
    return slots;
}

void emulated_copy(void *to, const void *from, unsigned bytes) {
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes != 0)
        emulated_fail("an asynchronous copy that is not aligned", block->current->where);
    if (block->is_late)
        block->current->copies.push_back({to, from, bytes});
    else
        memcpy(to, from, bytes);
}
void emulated_copy_commit() {
    Thread *t = block->current;
    t->committed.push_back(t->copies.size());
}
void emulated_copy_wait(unsigned pending) {
    Thread *t = block->current;
    if (t->committed.size() <= pending) return;
    const size_t groups = t->committed.size() - pending, copies = t->committed[groups - 1];
    do_copies(*t, copies);
    t->committed.erase(t->committed.begin(), t->committed.begin() + (long)groups);
    for (size_t &end : t->committed) end -= copies;
}

void emulated_execute(const EmulatedLaunch &now, const EmulatedLaunch *next) {
    const bool has_begun = begun.launch == &now;
    if (!has_begun) one_kernel.lock();
    Block *first = has_begun ? begun.block : nullptr;
    begun = Begun();
    const unsigned grid = now.grid.x * now.grid.y * now.grid.z;
    const uint64_t launch = launch_count++;
    if (grid == 0 || now.block.x == 0 || now.block.x > 1024 || now.block.y != 1 || now.block.z != 1)
        emulated_fail("a launch of no or too many threads", "");
    if (next && next->may_overlap && next->kernel != now.kernel && !is_lost.load()) {
        begun.block = first == &blocks[0] ? &blocks[1] : &blocks[0];
        begun.launch = next;
        begun.block->begin(*next, 0, (unsigned)launch + 1);
        (void)begun.block->run(true);
    }
    Block *other = begun.block == &blocks[0] ? &blocks[1] : &blocks[0];
    for (unsigned i = 0; i < grid && !is_lost.load(); i++) {
        const unsigned index = launch % 2 && !first ? grid - 1 - i : i;
        if (i == 0 && first) {
            (void)first->run(false);
            other = first;
            continue;
        }
        other->begin(now, index, (unsigned)launch + index);
        (void)other->run(false);
    }
    if (is_lost.load() && begun.block) begun.block->abandon(), begun = Begun();
    if (!begun.launch) one_kernel.unlock();
}
