// Memory that is asked for some time before it is read.
#pragma once

#include "simd.h"

namespace flat {

// A few stretches of memory, asked for in their order and some of them at a time: more at once would keep
// what is worked on from coming.
class Coming {
   public:
    template <class T>
    void add(const T* from, int64_t n) {
        if (n_ < MOST) waiting_[n_++] = {(const char*)from, (const char*)(from + n)};
    }
    // False once all has been asked for.
    bool ask(int lines = AT_ONCE) {
        while (lines > 0 && asked_ < n_) {
            Stretch& stretch = waiting_[asked_];
            for (; lines > 0 && stretch.at < stretch.end; lines--, stretch.at += LINE)
                __builtin_prefetch(stretch.at, 0, 2);
            if (stretch.at >= stretch.end) asked_++;
        }
        return asked_ < n_;
    }

   private:
    static constexpr int AT_ONCE = 32, MOST = 4;
    struct Stretch {
        const char *at, *end;
    };
    Stretch waiting_[MOST];
    int n_ = 0, asked_ = 0;
};

}  // namespace flat
