// Threads that share out the units of one job after another.
//
// A job is over when its units are done, not when all threads have come: one that the system has
// put aside holds up nothing but the few units that it had taken. Whoever ends the last unit of a job begins
// the next one, so that work goes on as long as any thread runs. Threads wait for a while by
// looking again, then they sleep.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "apart.h"
#include "coming.h"
#include "simd.h"

namespace flat {

constexpr int MOST_THREADS = 256;
constexpr auto PATIENCE = std::chrono::microseconds(60);
// Lines of memory that a thread asks for before it looks again whether there is something to do.
constexpr int LINES_AT_ONCE = 4;
// Units, or such as go together, that a thread takes at most of its own share; and so many times as many stay
// there for others to take.
constexpr int64_t MOST_TAKEN = 4, TIMES_LEFT = 3;

// Memory that grows and begins on a line of the processor's cache.
class Room {
   public:
    Room() = default;
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    ~Room() { free(at_); }

    // False where there is not enough memory.
    bool reserve(int64_t bytes) {
        bytes = (bytes + LINE - 1) / LINE * LINE;
        if (bytes <= size_) return true;
        free(at_);
        at_ = aligned_alloc(LINE, bytes);
        size_ = at_ ? bytes : 0;
        if (at_) memset(at_, 0, bytes);
        return at_ != nullptr;
    }
    template <class T>
    T* as() const {
        return static_cast<T*>(at_);
    }

   private:
    void* at_ = nullptr;
    int64_t size_ = 0;
};

// What a pool runs: a list of jobs, found one by one.
class Work {
   public:
    virtual ~Work() = default;
    // Finds the next job; does itself what is not worth sharing. The number of units, 0 at the end.
    virtual int64_t next() = 0;
    virtual void unit(int64_t unit, int thread) = 0;
    // Units of this job that go together if a thread takes that many.
    virtual int64_t at_once() const { return 1; }
    // What a thread will read first of the job behind this one.
    virtual Coming coming(int) const { return {}; }
    // Units that follow each other.
    virtual void units(int64_t first, int64_t n, int thread) {
        for (int64_t i = first; i < first + n; i++) unit(i, thread);
    }
};

// Work of one job.
class OneJob : public Work {
   public:
    explicit OneJob(int64_t units) : units_(units) {}
    int64_t next() override {
        const int64_t units = units_;
        units_ = 0;
        return units;
    }

   private:
    int64_t units_;
};

inline void pause_a_little() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Numbers that are too small round alike in every thread, whatever the caller has set.
class PlainRounding {
   public:
#if defined(__x86_64__)
    PlainRounding() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
    ~PlainRounding() { _mm_setcsr(before_); }

   private:
    unsigned before_;
#endif
};

class Pool {
   public:
    // Of fewer threads than are asked for where the system grants no more; each on a processor of
    // its own, if those are given.
    Pool(int asked, void (*idle)(), const std::vector<int>& own)
        : asked_(asked), idle_(idle), apart_(own) {
        try {
            for (int i = 1; i < asked; i++) others_.emplace_back([this, i] { stay(i); });
        } catch (const std::system_error&) {
        }
        apart_.place(others_);
        threads_.store(1 + int(others_.size()));
    }
    ~Pool() {
        stop_.store(true);
        announce();
        for (auto& other : others_) other.join();
    }
    int asked() const { return asked_; }
    int threads() const { return threads_.load(); }

    void run(Work& work) {
        PlainRounding plain;
        apart_.keep(others_);
        work_ = &work;
        over_.store(false);
        advance();
        help(0, [this] { return over_.load(); });
        idle_();
    }

   private:
    // Units of a job that one thread begins with: the first and the one behind the last.
    struct alignas(LINE) Share {
        std::atomic<uint64_t> units{0};
    };
    static uint64_t packed(uint64_t first, uint64_t end) { return first << 32 | end; }
    static int64_t first_of(uint64_t units) { return units >> 32; }
    static int64_t end_of(uint64_t units) { return units & 0xffffffff; }

    // Begins the next job that is worth sharing, or says that all is over.
    void advance() {
        int64_t units = work_->next();
        if (units == 0) {
            over_.store(true);
        } else {
            // All of it is on its way to the others at once: only the news are waited for.
            left_.store(units, std::memory_order_relaxed);
            at_once_.store(work_->at_once(), std::memory_order_relaxed);
            const int n = threads();
            for (int i = 0; i < n; i++)
                shares_[i].units.store(packed(units * i / n, units * (i + 1) / n),
                                       std::memory_order_release);
        }
        announce();
    }

    void announce() {
        news_.fetch_add(1);
        if (sleepers_.load() == 0) return;
        std::lock_guard<std::mutex> guard(mutex_);
        sleepers_.store(0);
        wake_.notify_all();
    }

    // Units that follow each other.
    struct Taken {
        int64_t first, n;
    };
    // A thread takes its own units from the front, some at once: each time it waits for what it has stored.
    bool take_own(int self, Taken& taken) {
        auto& share = shares_[self].units;
        uint64_t seen = share.load();
        while (first_of(seen) < end_of(seen)) {
            const int64_t first = first_of(seen), rest = end_of(seen) - first;
            const int64_t each = at_once_.load(), share_of_rest = rest / each / (1 + TIMES_LEFT);
            const int64_t times = std::clamp<int64_t>(share_of_rest, 1, MOST_TAKEN);
            const int64_t some = std::min(rest, times * each);
            if (share.compare_exchange_weak(seen, packed(first + some, end_of(seen)))) {
                taken = {first, some};
                return true;
            }
        }
        return false;
    }
    // And those of others from the back. What has been taken belongs to the job that is on: no other
    // begins before it is done.
    bool take_others(int self, Taken& taken) {
        const int n = threads();
        for (int i = 1; i < n; i++) {
            auto& share = shares_[(self + i) % n].units;
            uint64_t seen = share.load();
            while (first_of(seen) < end_of(seen)) {
                const int64_t last = end_of(seen) - 1;
                if (share.compare_exchange_weak(seen, packed(first_of(seen), last))) {
                    taken = {last, 1};
                    return true;
                }
            }
        }
        return false;
    }

    // Does what it can take; whoever has done the last of a job begins the next. False if there was nothing.
    // `coming` is then what the thread reads next.
    bool work_off(int self, bool (Pool::*take)(int, Taken&), Coming& coming) {
        Taken taken;
        int64_t n = 0;  // said once, as units are taken some at once
        while ((this->*take)(self, taken)) {
            work_->units(taken.first, taken.n, self);
            n += taken.n;
        }
        if (n == 0) return false;
        coming = work_->coming(self);
        if (left_.fetch_sub(n) == n) advance();
        return true;
    }

    // What others have stored takes long to come from a distant processor. So nobody looks at shares of others
    // who may have done the last unit of all.
    template <class Done>
    void help(int self, Done done) {
        Coming coming;
        while (!done()) {
            const uint32_t heard = news_.load();
            if (work_off(self, &Pool::take_own, coming)) continue;
            if (work_off(self, &Pool::take_others, coming)) continue;
            if (!done()) wait(self, heard, coming);
        }
    }

    // Until there is news since `heard`. Memory sends what is coming in the meantime.
    void wait(int self, uint32_t heard, Coming& coming) {
        idle_();
        auto heard_more = [&] {
            if (news_.load() == heard) return false;
            __builtin_prefetch(&shares_[self], 1);  // to be changed
            return true;
        };
        do {
            if (heard_more()) return;
        } while (coming.ask(LINES_AT_ONCE));
        auto until = std::chrono::steady_clock::now() + PATIENCE;
        do {
            for (int i = 0; i < 16; i++) {
                if (heard_more()) return;
                pause_a_little();
            }
        } while (std::chrono::steady_clock::now() < until);
        std::unique_lock<std::mutex> guard(mutex_);
        sleepers_.fetch_add(1);
        // Said before looking: whoever brings news from here on sees that somebody sleeps.
        while (news_.load() == heard) {
            wake_.wait(guard);
            if (news_.load() == heard) sleepers_.fetch_add(1);
        }
    }

    void stay(int self) {
        PlainRounding plain;
        help(self, [this] { return stop_.load(); });
    }

    const int asked_;
    std::atomic<int> threads_{1};
    void (*const idle_)();  // what a thread does that finds nothing to do
    Work* work_ = nullptr;
    Share shares_[MOST_THREADS];
    alignas(LINE) std::atomic<int64_t> left_{0};
    std::atomic<int64_t> at_once_{1};
    alignas(LINE) std::atomic<uint32_t> news_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> over_{true}, stop_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
    Apart apart_;
    std::vector<std::thread> others_;
};

}  // namespace flat
