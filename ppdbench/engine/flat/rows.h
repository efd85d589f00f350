// Operations on single rows: norms, rotation, activations and the like. What they write is rounded as its
// type is.
#pragma once

#include <cmath>

#include "simd.h"

namespace flat {

// Calls `each(at, n)` for every vector of a row; the last may have fewer than LANES numbers.
template <class Each>
inline void by_vectors(int64_t width, Each each) {
    for (int64_t i = 0; i < width; i += LANES) each(i, width - i);
}

template <class T>
inline void rms_norm(const T* x, T* out, int64_t width, const float* weight, float eps,
                     bool plus_one, bool round_first) {
    Vec squares{};
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec v = load_some(x + i, n);
        squares = fma(v, v, squares);
    });
    const float factor = 1.0f / sqrtf(sum(squares) / float(width) + eps);
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec v = load_some(x + i, n) * factor;
        if (round_first) v = held_as<T>(v);
        Vec w = load_some(weight + i, n);
        store_some(out + i, v * (plus_one ? w + 1.0f : w), n);
    });
}

// The mean of a row, and that of the squares of what deviates from it.
struct Moments {
    float mean, square;
};
template <class T>
inline Moments moments(const T* x, int64_t width) {
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

template <class T>
inline void layer_norm(const T* x, T* out, int64_t width, const float* weight, const float* bias,
                       float eps) {
    const Moments found = moments(x, width);
    const float factor = 1.0f / sqrtf(found.square + eps);
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec v = (load_some(x + i, n) - found.mean) * factor;
        if (weight) v = v * load_some(weight + i, n);
        if (bias) v = v + load_some(bias + i, n);
        store_some(out + i, v, n);
    });
}

// A number and what it is turned towards, by one angle; products are rounded first if they are
// in the stock model.
template <class T>
inline Vec turned(Vec along, Vec across, Vec cos, Vec sin, bool round_first) {
    Vec a = along * cos, b = across * sin;
    if (round_first) a = held_as<T>(a), b = held_as<T>(b);
    return a + b;
}

// Turns the first `width` numbers of a head, of which each pair lies half of them apart.
template <class T>
inline void rotate(T* x, int64_t width, const float* cos, const float* sin, bool round_first) {
    const int64_t half = width / 2;
    by_vectors(half, [&](int64_t i, int64_t n) {
        Vec left = load_some(x + i, n), right = load_some(x + half + i, n);
        auto turn = [&](Vec along, Vec across, int64_t at) {
            return turned<T>(along, across, load_some(cos + at, n), load_some(sin + at, n),
                             round_first);
        };
        store_some(x + i, turn(left, -right, i), n);
        store_some(x + half + i, turn(right, left, half + i), n);
    });
}

// The same where each pair lies side by side.
template <class T>
inline void rotate_neighbours(T* x, int64_t width, const float* cos, const float* sin,
                              bool round_first) {
    Ints other = counted(0) ^ 1;
    const Ints second = counted(0) & 1;
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec along = load_some(x + i, n), across = shuffled(along, along, other);
        across = second == 1 ? across : -across;
        Vec c = load_some(cos + i, n), s = load_some(sin + i, n);
        store_some(x + i, turned<T>(along, across, c, s, round_first), n);
    });
}

template <class From, class To>
inline void copy(const From* from, To* to, int64_t width) {
    by_vectors(width, [&](int64_t i, int64_t n) { store_some(to + i, load_some(from + i, n), n); });
}

// Rows that a product of bfloat16 reads: its numbers, perhaps widened again, zeros behind them.
inline void narrowed(const Bfloat16* from, Bfloat16* to, int64_t width, int64_t deep) {
    if (width > deep) width = deep;
    memcpy(to, from, width * sizeof *to);
    memset(to + width, 0, (deep - width) * sizeof *to);
}
inline void narrowed(const Bfloat16* from, float* to, int64_t width, int64_t deep) {
    for (int64_t i = 0; i < deep; i += LANES)
        store(to + i, i < width ? load_some(from + i, width - i) : Vec{});
}

template <class T>
inline void act(const T* x, const T* times, T* out, int64_t width, int which) {
    with_activation(which, [&](auto known) {
        by_vectors(width, [&](int64_t i, int64_t n) {
            Vec v = activated<known>(load_some(x + i, n));
            if (times) v = held_as<T>(v) * load_some(times + i, n);
            store_some(out + i, v, n);
        });
    });
}

template <class T>
inline void cap(const T* x, T* out, int64_t width, float value) {
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec v = held_as<T>(load_some(x + i, n) / value);
        store_some(out + i, held_as<T>(tanh(v)) * value, n);
    });
}

// What lies above the mean by so many deviations, less those; nought in the place of the rest.
template <class T>
inline void cut(const T* x, T* out, int64_t width, float deviations) {
    auto held = [&](float value) { return held_as<T>(all(value))[0]; };
    const Moments found = moments(x, width);
    const float far = held(held(sqrtf(found.square)) * held(deviations));
    const float least = held(held(found.mean) + far);
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec v = held_as<T>(load_some(x + i, n) - least);
        store_some(out + i, v < 0.0f ? Vec{} : v, n);
    });
}

// Onto a part the sum of some others, which lie one behind another, each times a number.
template <class T>
inline void mix(const T* x, int64_t count, const T* by, T* out, int64_t width) {
    by_vectors(width, [&](int64_t i, int64_t n) {
        Vec total{};
        for (int64_t j = 0; j < count; j++)
            total = fma(load_some(x + j * width + i, n), all(number(by[j])), total);
        store_some(out + i, load_some(out + i, n) + held_as<T>(total), n);
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
