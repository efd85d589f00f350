// Operations on single rows: norms, rotation, activations and the like.
#pragma once

#include <cmath>

#include "simd.h"

namespace flat {

// Calls `each(at, n)` for every vector of a row; the last may have fewer than LANES numbers.
template <class Each>
inline void by_vectors(int64_t width, Each each) {
    for (int64_t i = 0; i < width; i += LANES) each(i, width - i);
}

inline void rms_norm(const float* x, float* out, int64_t width, const float* weight, float eps,
                     bool plus_one, bool round_first, bool narrow) {
    Vec squares{};
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec v = load_some(x + i, n);
        squares = fma(v, v, squares);
    });
    const float factor = 1.0f / sqrtf(sum(squares) / float(width) + eps);
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec v = rounded_if(narrow && round_first, load_some(x + i, n) * factor);
        Vec w = load_some(weight + i, n);
        store_some(out + i, rounded_if(narrow, v * (plus_one ? w + 1.0f : w)), n);
    });
}

// The mean of a row, and that of the squares of what deviates from it.
struct Moments {
    float mean, square;
};
inline Moments moments(const float* x, int64_t width) {
    Vec total{}, squares{};
    by_vectors(width, [&](int64_t i, int64_t n) { total = total + load_some(x + i, n); });
    const float mean = sum(total) / float(width);
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec v = load_some(x + i, n) - mean;
        if (n < LANES) {  // what is not there is no deviation
            float lanes[LANES];
            store(lanes, v);
            for (int64_t j = n; j < LANES; j++) lanes[j] = 0;
            v = load(lanes);
        }
        squares = fma(v, v, squares);
    });
    return {mean, sum(squares) / float(width)};
}

inline void layer_norm(const float* x, float* out, int64_t width, const float* weight,
                       const float* bias, float eps, bool narrow) {
    const Moments found = moments(x, width);
    const float factor = 1.0f / sqrtf(found.square + eps);
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec v = (load_some(x + i, n) - found.mean) * factor;
        if (weight) v = v * load_some(weight + i, n);
        if (bias) v = v + load_some(bias + i, n);
        store_some(out + i, rounded_if(narrow, v), n);
    });
}

// A number and what it is turned towards, by one angle; products are rounded first if they are
// in the stock model.
inline Vec turned(Vec along, Vec across, Vec cos, Vec sin, bool narrow, bool round_first) {
    Vec a = rounded_if(narrow && round_first, along * cos);
    Vec b = rounded_if(narrow && round_first, across * sin);
    return rounded_if(narrow, a + b);
}

// Turns the first `width` numbers of a head, of which each pair lies half of them apart.
inline void rotate(float* x, int64_t width, const float* cos, const float* sin, bool narrow,
                   bool round_first) {
    const int64_t half = width / 2;
    by_vectors(half, [&](int64_t i, int64_t n) {
        Vec left = load_some(x + i, n), right = load_some(x + half + i, n);
        auto turn = [&](Vec along, Vec across, int64_t at) {
            return turned(along, across, load_some(cos + at, n), load_some(sin + at, n), narrow,
                          round_first);
        };
        store_some(x + i, turn(left, -right, i), n);
        store_some(x + half + i, turn(right, left, half + i), n);
    });
}

// The same where each pair lies side by side.
inline void rotate_neighbours(float* x, int64_t width, const float* cos, const float* sin,
                              bool narrow, bool round_first) {
    Ints other = counted(0) ^ 1;
    const Ints second = counted(0) & 1;
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec along = load_some(x + i, n), across = shuffled(along, along, other);
        across = second == 1 ? across : -across;
        Vec c = load_some(cos + i, n), s = load_some(sin + i, n);
        store_some(x + i, turned(along, across, c, s, narrow, round_first), n);
    });
}

template <class T>
inline void copy(const T* from, float* to, int64_t width) {
    by_vectors(width, [&](int64_t i, int64_t n) { store_some(to + i, load_some(from + i, n), n); });
}
template <class T>
inline void copy_out(const float* from, T* to, int64_t width) {
    by_vectors(width, [&](int64_t i, int64_t n) { store_some(to + i, load_some(from + i, n), n); });
}

// Rows that a product of bfloat16 reads: its numbers, perhaps widened, zeros behind them.
template <class T>
inline void narrowed(const float* from, T* to, int64_t width, int64_t deep) {
    for (int64_t i = 0; i < deep; i += LANES)
        store_rounded(to + i, i < width ? load_some(from + i, width - i) : Vec{});
}

inline void act(const float* x, const float* times, float* out, int64_t width, int which,
                bool narrow) {
    with_activation(which, [&](auto known) {
        by_vectors(width, [&](int64_t i, int64_t n) {
            Vec v = rounded_if(narrow, activated<known>(load_some(x + i, n)));
            if (times) v = rounded_if(narrow, v * load_some(times + i, n));
            store_some(out + i, v, n);
        });
    });
}

inline void cap(const float* x, float* out, int64_t width, float value, bool narrow) {
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec v = rounded_if(narrow, load_some(x + i, n) / value);
        v = rounded_if(narrow, tanh(v));
        store_some(out + i, rounded_if(narrow, v * value), n);
    });
}

// What lies above the mean by so many deviations, less those; nought in the place of the rest.
inline void cut(const float* x, float* out, int64_t width, float deviations, bool narrow) {
    auto held = [&](float value) { return rounded_if(narrow, all(value))[0]; };
    const Moments found = moments(x, width);
    const float far = held(held(sqrtf(found.square)) * held(deviations));
    const float least = held(held(found.mean) + far);
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec v = rounded_if(narrow, load_some(x + i, n) - least);
        store_some(out + i, v < 0.0f ? Vec{} : v, n);
    });
}

// Onto a part the sum of some others, which lie one behind another, each times a number.
inline void mix(const float* x, int64_t count, const float* by, float* out, int64_t width,
                bool narrow) {
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec total{};
        for (int64_t j = 0; j < count; j++)
            total = fma(load_some(x + j * width + i, n), all(by[j]), total);
        total = load_some(out + i, n) + rounded_if(narrow, total);
        store_some(out + i, rounded_if(narrow, total), n);
    });
}

// The first of the largest numbers, in whatever order they come; NaN above all.
struct Peak {
    float value = -INFINITY;
    int64_t at = -1;

    void take(float x, int64_t i) {
        const bool is_first = i < at, none = x != x, held_none = value != value;
        if (at < 0 || x > value || (x == value && is_first) ||
            (none && (!held_none || is_first)))
            value = x, at = i;
    }
    void take(const Peak& other) {
        if (other.at >= 0) take(other.value, other.at);
    }
    // The first `n` numbers of a vector, which are counted from `first`.
    void take(Vec x, int64_t first, int64_t n) {
        // Mostly none is above the peak.
        const Ints below = first < at ? x < value : x <= value;
        if (at >= 0 && n >= LANES && !any(~below)) return;
        float lanes[LANES];
        store(lanes, x);
        for (int64_t i = 0; i < n && i < LANES; i++) take(lanes[i], first + i);
    }
};

}  // namespace flat
