// Numbers side by side: one vector type as wide as the processor's registers, in float32.
//
// Compiled without contraction of a * b + c: products are fused where `fma` says so and nowhere
// else, or the same sum could round differently in two places that the compiler treats
// differently.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace flat {

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4, REGISTERS = 32;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif
constexpr int64_t BLOCK = 32;              // outputs of a product that are computed together
constexpr int VECTORS = BLOCK / LANES;     // vectors of a block
constexpr int TILE = 16;                   // keys of attention that are scored together
constexpr int64_t LINE = 64;               // bytes that memory sends at a time

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
// As they lie in memory, perhaps among numbers of 16 bits.
typedef float VecAnywhere __attribute__((vector_size(LANES * 4), aligned(2), may_alias));
typedef uint16_t HalvesAnywhere __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef int32_t IntsAnywhere __attribute__((vector_size(LANES * 4), aligned(2), may_alias));

struct Bfloat16 {
    uint16_t bits;
};
struct Half {  // of IEEE 754
    uint16_t bits;
};

// Minus nothing, which is the number itself: 0 + x is not where x is -0, and would be computed.
inline Vec all(float x) { return x - Vec{}; }
inline Ints all_ints(int32_t x) { return Ints{} + x; }
inline Vec as_floats(Ints x) { return (Vec)x; }
inline Ints as_ints(Vec x) { return (Ints)x; }

inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX__) && defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

// The numbers of the lanes, counted from `first`.
inline Ints counted(int32_t first) {
    static const int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return *(const IntsAnywhere*)numbers + first;
}
inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

// Numbers of 16 bits as such of 32, and their lower 16 bits. Compilers know it in more steps.
inline Ints widened(Halves x) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtepu16_epi32((__m256i)x);
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtepu16_epi32((__m128i)x);
#else
    return __builtin_convertvector(x, Ints);
#endif
}
inline Halves lower_halves(Ints x) {
#if defined(__AVX512F__)
    return (Halves)_mm512_cvtepi32_epi16((__m512i)x);
#elif defined(__AVX2__)
    const __m256i bits = (__m256i)(x & 0xffff);
    const __m128i low = _mm256_castsi256_si128(bits), high = _mm256_extracti128_si256(bits, 1);
    return (Halves)_mm_packus_epi32(low, high);
#else
    return __builtin_convertvector(x, Halves);
#endif
}

inline Vec load(const float* from) { return *(const VecAnywhere*)from; }
// What stays in a register: with AVX2 compilers read it again for every use, which takes longer.
inline Vec read_once(Vec x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    asm("" : "+x"(x));
#endif
    return x;
}
inline Vec wide(Halves bfloat16) { return as_floats(widened(bfloat16) << 16); }
// The first or the second number of pairs of bfloat16.
template <int which>
inline Vec of_pairs(Ints pairs) {
    return as_floats(which ? pairs & int32_t(0xffff0000) : pairs << 16);
}
inline Vec load(const Bfloat16* from) { return wide(*(const HalvesAnywhere*)from); }

// Of numbers that are finite.
inline Vec load(const Half* from) {
    const Halves bits = *(const HalvesAnywhere*)from;
#if defined(__AVX512F__)
    return (Vec)_mm512_cvtph_ps((__m256i)bits);
#elif defined(__F16C__)
    return (Vec)_mm256_cvtph_ps((__m128i)bits);
#else
    const Ints wide = widened(bits), size = (wide & 0x7fff) << 13;
    return as_floats(as_ints(as_floats(size) * 0x1p112f) | (wide & 0x8000) << 16);
#endif
}

// The nearest bfloat16, of two equally near ones the even; NaN stays NaN.
#if defined(__AVX512BF16__)
inline Halves rounded_halves(Vec x) { return (Halves)_mm512_cvtneps_pbh((__m512)x); }
inline Vec rounded(Vec x) { return wide(rounded_halves(x)); }
#else
inline Vec rounded(Vec x) {
    const Ints bits = as_ints(x), near = bits + 0x7fff + ((bits >> 16) & 1);
    return as_floats((x == x ? near : all_ints(0x7fc00000)) & int32_t(0xffff0000));
}
inline Halves rounded_halves(Vec x) { return lower_halves(as_ints(rounded(x)) >> 16); }
#endif
inline Vec rounded_if(bool narrow, Vec x) { return narrow ? rounded(x) : x; }

// As numbers of type T hold it.
template <class T>
constexpr bool IS_NARROW = std::is_same<T, Bfloat16>::value;
template <class T>
inline Vec held_as(Vec x) {
    return rounded_if(IS_NARROW<T>, x);
}
inline float number(float x) { return x; }
inline float number(Bfloat16 x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

// Gives back what is held then.
inline Vec store(float* to, Vec x) { return *(VecAnywhere*)to = x; }
inline Vec store(Bfloat16* to, Vec x) {
    const Halves near = rounded_halves(x);
    *(HalvesAnywhere*)to = near;
    return wide(near);
}

// The first `n` numbers, zeros behind them.
template <class T>
inline Vec load_some(const T* from, int64_t n) {
    if (n >= LANES) return load(from);
    T some[LANES] = {};
    memcpy(some, from, n * sizeof(T));
    return load(some);
}

template <class T>
inline Vec store_some(T* to, Vec x, int64_t n) {
    if (n >= LANES) return store(to, x);
    T some[LANES];
    x = store(some, x);
    memcpy(to, some, n * sizeof(T));
    return x;
}

// True if any lane has a bit.
inline bool any(Ints x) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)x, (__m512i)x);
#elif defined(__AVX__)
    return !_mm256_testz_si256((__m256i)x, (__m256i)x);
#else
    int32_t bits = 0;
    for (int i = 0; i < LANES; i++) bits |= x[i];
    return bits;
#endif
}

// Numbers of two vectors, those of the second counted on from LANES.
inline Vec shuffled(Vec a, Vec b, Ints which) {
#if defined(__AVX512F__)
    return _mm512_permutex2var_ps(a, (__m512i)which, b);
#elif defined(__AVX2__)
    const Vec left = _mm256_permutevar8x32_ps(a, (__m256i)which);
    const Vec right = _mm256_permutevar8x32_ps(b, (__m256i)which);
    return which < LANES ? left : right;
#else
    Vec out;
    for (int i = 0; i < LANES; i++) out[i] = which[i] < LANES ? a[which[i]] : b[which[i] - LANES];
    return out;
#endif
}

// The sum and the largest of the lanes: halves onto halves, always in this order.
inline float sum(Vec x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(x);
#elif defined(__AVX__)
    const __m128 half = _mm256_castps256_ps128(x) + _mm256_extractf128_ps(x, 1);
    const __m128 quarter = half + _mm_movehl_ps(half, half);
    return quarter[0] + quarter[1];
#else
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
#endif
}
inline float largest(Vec x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(x);
#elif defined(__AVX__)
    const __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 quarter = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return quarter[0] > quarter[1] ? quarter[0] : quarter[1];
#else
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
#endif
}

// Numbers of 16 bits of two vectors in turn: the first of one, the first of the other, the second of one.
struct InTurn {
    Vec low, high;
};
inline InTurn in_turn(Vec one, Vec other) {
#if defined(__AVX512BW__)
    // Within each quarter two pieces are laid in turn: those that belong there are brought first.
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    const __m512i a = _mm512_permutexvar_epi64(order, (__m512i)one);
    const __m512i b = _mm512_permutexvar_epi64(order, (__m512i)other);
    return {(Vec)_mm512_unpacklo_epi16(a, b), (Vec)_mm512_unpackhi_epi16(a, b)};
#else
    uint16_t a[2 * LANES], b[2 * LANES], mixed[4 * LANES];
    memcpy(a, &one, sizeof a), memcpy(b, &other, sizeof b);
    for (int i = 0; i < 2 * LANES; i++) mixed[2 * i] = a[i], mixed[2 * i + 1] = b[i];
    InTurn found;
    memcpy(&found, mixed, sizeof found);
    return found;
#endif
}

// Rows of a square become its columns.
inline void transpose(Vec (&square)[LANES]) {
    Ints low, high;
    for (int i = 0; i < LANES; i++) {
        low[i] = i / 2 + (i % 2) * LANES;
        high[i] = low[i] + LANES / 2;
    }
    for (int step = 1; step < LANES; step *= 2) {
        Vec mixed[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES / 2; i++) {
            mixed[2 * i] = shuffled(square[i], square[i + LANES / 2], low);
            mixed[2 * i + 1] = shuffled(square[i], square[i + LANES / 2], high);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) square[i] = mixed[i];
    }
}

#if defined(__AVX__)
#define FLAT_FOUR_COLUMNS 1

// Four words of some rows, a quarter of a vector each, where `row(i)` begins with the first of them.
template <class Row>
inline Vec quarters(Row row, int i) {
#if defined(__AVX512F__)
    __m512 held = _mm512_castps128_ps512(_mm_loadu_ps(row(i)));
    held = _mm512_insertf32x4(held, _mm_loadu_ps(row(i + 4)), 1);
    held = _mm512_insertf32x4(held, _mm_loadu_ps(row(i + 8)), 2);
    return (Vec)_mm512_insertf32x4(held, _mm_loadu_ps(row(i + 12)), 3);
#else
    const __m256 held = _mm256_castps128_ps256(_mm_loadu_ps(row(i)));
    return (Vec)_mm256_insertf128_ps(held, _mm_loadu_ps(row(i + 4)), 1);
#endif
}

// Of each quarter words of two vectors in turn, or pairs of words.
inline InTurn words_in_turn(Vec a, Vec b) {
#if defined(__AVX512F__)
    return {(Vec)_mm512_unpacklo_ps(a, b), (Vec)_mm512_unpackhi_ps(a, b)};
#else
    return {(Vec)_mm256_unpacklo_ps(a, b), (Vec)_mm256_unpackhi_ps(a, b)};
#endif
}
inline InTurn pairs_in_turn(Vec a, Vec b) {
#if defined(__AVX512F__)
    return {(Vec)_mm512_unpacklo_pd((__m512d)a, (__m512d)b),
            (Vec)_mm512_unpackhi_pd((__m512d)a, (__m512d)b)};
#else
    return {(Vec)_mm256_unpacklo_pd((__m256d)a, (__m256d)b),
            (Vec)_mm256_unpackhi_pd((__m256d)a, (__m256d)b)};
#endif
}

// Four columns of LANES rows of words: each becomes a vector. By halves of what `transpose` shuffles, as
// quarters of vectors are put together by loads.
template <class Row>
inline void four_columns(Row row, Vec (&columns)[4]) {
    const InTurn one = words_in_turn(quarters(row, 0), quarters(row, 1));
    const InTurn two = words_in_turn(quarters(row, 2), quarters(row, 3));
    const InTurn left = pairs_in_turn(one.low, two.low), right = pairs_in_turn(one.high, two.high);
    columns[0] = left.low, columns[1] = left.high;
    columns[2] = right.low, columns[3] = right.high;
}
#endif

// What lies further from nought than `most` comes as near; NaN stays.
inline Vec clipped(Vec x, float most) {
    Vec low = x > most ? all(most) : x;
    return low < -most ? all(-most) : low;
}

// e^x within two units of the last place; 0 where that would be next to denormal, NaN for NaN. Of
// numbers up to 88.
inline Vec bounded_exp(Vec x) {
    const Vec least = all(-87.0f);
    const Vec bounded = x < least ? least : x;  // so put that NaN stays
    const Vec shift = all(12582912.0f);  // 1.5 * 2^23: what is added to it rounds to whole numbers
    Vec whole = bounded * 1.44269504088896341f + shift;
    Ints power = as_ints(whole) - as_ints(shift);
    whole = whole - shift;
    Vec rest = fma(whole, all(-0.693359375f), bounded);
    rest = fma(whole, all(2.12194440e-4f), rest);
    Vec series = all(1.9875691500e-4f);
    series = fma(series, rest, all(1.3981999507e-3f));
    series = fma(series, rest, all(8.3334519073e-3f));
    series = fma(series, rest, all(4.1665795894e-2f));
    series = fma(series, rest, all(1.6666665459e-1f));
    series = fma(series, rest, all(5.0000001201e-1f));
    series = fma(series, rest * rest, rest) + 1.0f;
    Vec scaled = series * as_floats((power + 127) << 23);
    return x < least ? Vec{} : scaled;
}
inline Vec exp(Vec x) { return bounded_exp(x > 88.0f ? all(88.0f) : x); }

inline Vec tanh(Vec x) {
    Vec size = x < 0.0f ? -x : x;
    Vec square = x * x;
    Vec near = all(-5.70498872745e-3f);
    near = fma(near, square, all(2.06390887954e-2f));
    near = fma(near, square, all(-5.37397155531e-2f));
    near = fma(near, square, all(1.33314422036e-1f));
    near = fma(near, square, all(-3.33332819422e-1f));
    near = fma(near * square, x, x);
    Vec far = 1.0f - 2.0f / (exp(size * 2.0f) + 1.0f);
    far = x < 0.0f ? -far : far;
    return size < 0.625f ? near : far;
}

// Abramowitz and Stegun 7.1.26, within 1.5e-7.
inline Vec erf(Vec x) {
    Vec size = x < 0.0f ? -x : x;
    Vec t = 1.0f / fma(size, all(0.3275911f), all(1.0f));
    Vec series = all(1.061405429f);
    series = fma(series, t, all(-1.453152027f));
    series = fma(series, t, all(1.421413741f));
    series = fma(series, t, all(-0.284496736f));
    series = fma(series, t, all(0.254829592f));
    Vec found = 1.0f - series * t * exp(-size * size);
    return x < 0.0f ? -found : found;
}

// e^x - 1 - x, for x that is not above zero.
inline Vec bend(Vec x) {
    Vec series = all(2.4801587e-5f);
    series = fma(series, x, all(1.9841270e-4f));
    series = fma(series, x, all(1.3888889e-3f));
    series = fma(series, x, all(8.3333333e-3f));
    series = fma(series, x, all(4.1666667e-2f));
    series = fma(series, x, all(1.6666667e-1f));
    series = fma(series, x, all(0.5f));
    Vec far = exp(x) - 1.0f - x;
    return x < -0.5f ? far : series * x * x;
}

// A square above zero and an exponential below it, bent away from a line.
inline Vec xielu(Vec x, float above, float below, float slope) {
    Vec bent = x > 0.0f ? x * x * above : bend(x) * below;
    return bent + x * slope;
}

// log(1 + x), for x from nought to one: the inverse hyperbolic tangent of x / (2 + x), twice.
inline Vec log1p(Vec x) {
    Vec part = x / (x + 2.0f), square = part * part;
    Vec series = all(6.6666667e-2f);
    series = fma(series, square, all(7.6923077e-2f));
    series = fma(series, square, all(9.0909091e-2f));
    series = fma(series, square, all(1.1111111e-1f));
    series = fma(series, square, all(1.4285714e-1f));
    series = fma(series, square, all(2.0e-1f));
    series = fma(series, square, all(3.3333333e-1f));
    return 2.0f * fma(series * square, part, part);
}

enum Activation { SILU, GELU_TANH, GELU, RELU, RELU2, SIGMOID, SOFTPLUS };

template <int which>
inline Vec activated(Vec x) {
    switch (which) {
        case SILU: return x / (1.0f + exp(-x));
        case GELU_TANH: {
            Vec cubed = x * x * x;
            return x * 0.5f * (1.0f + tanh((x + cubed * 0.044715f) * 0.7978845608028654f));
        }
        case GELU: return x * 0.5f * (1.0f + erf(x * 0.7071067811865476f));
        case RELU: return x < 0.0f ? Vec{} : x;
        case SIGMOID: return 1.0f / (1.0f + exp(-x));
        case SOFTPLUS: {
            Vec positive = x < 0.0f ? Vec{} : x;
            return positive + log1p(exp(x < 0.0f ? x : -x));
        }
        default: {
            Vec positive = x < 0.0f ? Vec{} : x;
            return positive * positive;
        }
    }
}

// Calls `each` with an activation, as a constant: asked once for many numbers.
template <class Each>
inline void with_activation(int which, Each each) {
    switch (which) {
        case SILU: return each(std::integral_constant<int, SILU>{});
        case GELU_TANH: return each(std::integral_constant<int, GELU_TANH>{});
        case GELU: return each(std::integral_constant<int, GELU>{});
        case RELU: return each(std::integral_constant<int, RELU>{});
        case RELU2: return each(std::integral_constant<int, RELU2>{});
        case SIGMOID: return each(std::integral_constant<int, SIGMOID>{});
        default: return each(std::integral_constant<int, SOFTPLUS>{});
    }
}

// Asks at once for all lines of memory that is about to be written: for each that another processor has it
// would else wait when it is its turn.
template <class T>
inline void take_over(const T* at, int64_t n) {
    const auto first = (uintptr_t)at / LINE * LINE, end = (uintptr_t)(at + n);
    for (uintptr_t line = first; line < end; line += LINE) __builtin_prefetch((const void*)line, 1);
}

}  // namespace flat
