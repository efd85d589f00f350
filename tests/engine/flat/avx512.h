// The instructions of AVX-512 that the kernels name, in terms of AVX2: what is built with this runs
// on processors without them. Everything else is for the compiler, which takes vectors of any width.
#pragma once

#include <immintrin.h>

// Only now: the header above would take its own for instructions of this processor.
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512BF16__ 1

namespace emulated {

typedef float Floats __attribute__((vector_size(64)));
typedef int Ints __attribute__((vector_size(64)));
typedef unsigned short Half __attribute__((vector_size(32)));
typedef unsigned Words __attribute__((vector_size(64)));
typedef unsigned char Bytes __attribute__((vector_size(16)));

struct Halves {
    __m256 low, high;
};

inline Floats fused(Floats a, Floats b, Floats c) {
    Halves x, y, z;
    __builtin_memcpy(&x, &a, 64), __builtin_memcpy(&y, &b, 64), __builtin_memcpy(&z, &c, 64);
    z.low = _mm256_fmadd_ps(x.low, y.low, z.low);
    z.high = _mm256_fmadd_ps(x.high, y.high, z.high);
    __builtin_memcpy(&c, &z, 64);
    return c;
}

inline Floats picked(Floats a, Ints which, Floats b) {
    Floats out;
    for (int i = 0; i < 16; i++) out[i] = (which[i] & 16 ? b : a)[which[i] & 15];
    return out;
}

inline Floats looked_up(Ints which, Floats table) {
    Floats out;
    for (int i = 0; i < 16; i++) out[i] = table[which[i] & 15];
    return out;
}

typedef unsigned short Shorts __attribute__((vector_size(64)));

// The nearest bfloat16, of two equally near ones the even; the second vector's come first.
inline Shorts rounded_pairs(Floats high, Floats low) {
    Shorts out;
    for (int i = 0; i < 32; i++) {
        unsigned bits;
        const float x = i < 16 ? low[i] : high[i - 16];
        __builtin_memcpy(&bits, &x, 4);
        out[i] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    return out;
}
inline Half rounded(Floats x) {
    const Shorts pairs = rounded_pairs(x, x);
    Half out;
    __builtin_memcpy(&out, &pairs, 32);
    return out;
}
inline bool any(Ints x) {
    int bits = 0;
    for (int i = 0; i < 16; i++) bits |= x[i];
    return bits;
}
inline Floats widened(Half x) {
    Halves out;
    __m128i low, high;
    __builtin_memcpy(&low, &x, 16), __builtin_memcpy(&high, (char*)&x + 16, 16);
    out.low = _mm256_cvtph_ps(low), out.high = _mm256_cvtph_ps(high);
    Floats all;
    __builtin_memcpy(&all, &out, 64);
    return all;
}
inline __m512i twice(__m256i x) {
    const __m256i both[2] = {x, x};
    __m512i out;
    __builtin_memcpy(&out, both, 64);
    return out;
}
inline Shorts shorts_at(Shorts which, Shorts table) {
    Shorts out;
    for (int i = 0; i < 32; i++) out[i] = table[which[i] & 31];
    return out;
}

typedef double Doubles __attribute__((vector_size(64)));
typedef long long Longs __attribute__((vector_size(64)));

// Of two vectors in turn, one and then the other: in each quarter those from `first` on.
template <class Numbers>
inline Numbers in_turn(Numbers a, Numbers b, int first) {
    constexpr int n = 64 / sizeof(a[0]), each = n / 4;
    Numbers out;
    for (int i = 0; i < n; i++)
        out[i] = (i % 2 ? b : a)[i / each * each + first + i % each / 2];
    return out;
}
inline Floats with_quarter(Floats x, __m128 quarter, int which) {
    for (int i = 0; i < 4; i++) x[4 * which + i] = quarter[i];
    return x;
}
inline Longs longs_at(Longs which, Longs table) {
    Longs out;
    for (int i = 0; i < 8; i++) out[i] = table[which[i] & 7];
    return out;
}
inline void store_some(float* to, unsigned some, Floats x) {
    for (int i = 0; i < 16; i++)
        if (some >> i & 1) to[i] = x[i];
}

// Halves onto halves.
inline float sum(Floats x) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}
inline float largest(Floats x) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
}

// The second number of each pair, then the first, each fused onto the sum.
inline Floats pairs_onto(Floats sums, Words a, Words b) {
    const Words second = Words{} + 0xffff0000u;
    sums = fused((Floats)(a & second), (Floats)(b & second), sums);
    return fused((Floats)(a << 16), (Floats)(b << 16), sums);
}

}  // namespace emulated

#define _mm512_fmadd_ps(a, b, c) emulated::fused(a, b, c)
#define _mm512_permutex2var_ps(a, which, b) emulated::picked(a, (emulated::Ints)(which), b)
#define _mm512_reduce_add_ps(x) emulated::sum(x)
#define _mm512_reduce_max_ps(x) emulated::largest(x)
#define _mm512_loadu_si512(from) (*(const __m512i_u*)(from))
#define _mm512_set1_epi32(x) ((__m512i)(emulated::Ints{} + (x)))
#define _mm512_cvtepu16_epi32(x) \
    __builtin_convertvector((emulated::Half)(x), emulated::Ints)
#define _mm512_cvtepi32_epi16(x) \
    ((__m256i)__builtin_convertvector((emulated::Ints)(x), emulated::Half))
#define _mm512_permutexvar_ps(which, table) emulated::looked_up((emulated::Ints)(which), table)
#define _mm512_set_ps(p, o, n, m, l, k, j, i, h, g, f, e, d, c, b, a) \
    (emulated::Floats{a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p})
#define _mm512_cvtne2ps_pbh(high, low) \
    emulated::rounded_pairs((emulated::Floats)(high), (emulated::Floats)(low))
#define _mm512_cvtneps_pbh(x) emulated::rounded((emulated::Floats)(x))
#define _mm512_test_epi32_mask(x, same) emulated::any((emulated::Ints)(x))
#define _mm512_permutexvar_epi16(which, table) \
    emulated::shorts_at((emulated::Shorts)(which), (emulated::Shorts)(table))
#define _mm512_cvtph_ps(x) emulated::widened((emulated::Half)(x))
#define _mm512_storeu_si512(to, x) (*(__m512i_u*)(to) = (__m512i)(x))
#define _mm512_srli_epi16(x, n) ((__m512i)((emulated::Shorts)(x) >> (n)))
#define _mm512_broadcast_i64x4(x) emulated::twice(x)
#define _mm512_cvtepu8_epi32(x) ((__m512i)__builtin_convertvector((emulated::Bytes)(x), emulated::Ints))
#define _mm512_cvtepi32_ps(x) __builtin_convertvector((emulated::Ints)(x), emulated::Floats)
#define _mm512_dpbf16_ps(sums, a, b) \
    emulated::pairs_onto((emulated::Floats)(sums), (emulated::Words)(a), (emulated::Words)(b))
#define _mm512_castps128_ps512(x) ((__m512)emulated::with_quarter(emulated::Floats{}, x, 0))
#define _mm512_insertf32x4(x, quarter, which) \
    ((__m512)emulated::with_quarter((emulated::Floats)(x), quarter, which))
#define _mm512_unpacklo_ps(a, b) \
    ((__m512)emulated::in_turn((emulated::Floats)(a), (emulated::Floats)(b), 0))
#define _mm512_unpackhi_ps(a, b) \
    ((__m512)emulated::in_turn((emulated::Floats)(a), (emulated::Floats)(b), 2))
#define _mm512_unpacklo_pd(a, b) \
    ((__m512d)emulated::in_turn((emulated::Doubles)(a), (emulated::Doubles)(b), 0))
#define _mm512_unpackhi_pd(a, b) \
    ((__m512d)emulated::in_turn((emulated::Doubles)(a), (emulated::Doubles)(b), 1))
#define _mm512_unpacklo_epi16(a, b) \
    ((__m512i)emulated::in_turn((emulated::Shorts)(a), (emulated::Shorts)(b), 0))
#define _mm512_unpackhi_epi16(a, b) \
    ((__m512i)emulated::in_turn((emulated::Shorts)(a), (emulated::Shorts)(b), 4))
#define _mm512_set_epi64(h, g, f, e, d, c, b, a) \
    ((__m512i)(emulated::Longs{a, b, c, d, e, f, g, h}))
#define _mm512_permutexvar_epi64(which, x) \
    ((__m512i)emulated::longs_at((emulated::Longs)(which), (emulated::Longs)(x)))
#define _mm512_mask_storeu_ps(to, some, x) emulated::store_some(to, some, (emulated::Floats)(x))
