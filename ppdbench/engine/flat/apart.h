// Threads that do not run where the one runs that gives them work.
//
// Linux may wake a thread on the processor of the one that wakes it, and leave both there for
// milliseconds while another processor is idle: in virtual machines above all, whose idle
// processors are given back to the host and then count as taken. Then the work of two is done by
// one. So threads may run wherever the one that gives them work may, but for where it is; or each
// on a processor of its own, if those are given.
#pragma once

#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace flat {

#if defined(__linux__)
class Apart {
   public:
    // `own`: the processor of the thread that gives work, and then of each other; or none.
    explicit Apart(std::vector<int> own) : own_(std::move(own)) {}

    // Called once they have begun.
    void place(std::vector<std::thread>& others) const {
        for (size_t i = 1; i < own_.size() && i <= others.size(); i++) {
            cpu_set_t there;
            CPU_ZERO(&there);
            CPU_SET(own_[i], &there);
            move(others[i - 1], there);
        }
    }

    // The thread that calls is about to give work to these; it asks the system only if it has moved.
    void keep(std::vector<std::thread>& others) {
        const int here = sched_getcpu();
        if (here == left_out_ || here < 0 || !own_.empty()) return;
        left_out_ = here;
        cpu_set_t free;  // not known where there are more processors than a set holds
        if (pthread_getaffinity_np(pthread_self(), sizeof free, &free)) return;
        CPU_CLR(here, &free);
        if (CPU_COUNT(&free) == 0) return;
        for (auto& each : others) move(each, free);
    }

   private:
    static void move(std::thread& thread, const cpu_set_t& there) {
        pthread_setaffinity_np(thread.native_handle(), sizeof there, &there);
    }

    const std::vector<int> own_;
    int left_out_ = -1;
};
#else
// Where threads run is not ours to say.
class Apart {
   public:
    explicit Apart(const std::vector<int>&) {}
    void place(std::vector<std::thread>&) const {}
    void keep(std::vector<std::thread>&) {}
};
#endif

}  // namespace flat
