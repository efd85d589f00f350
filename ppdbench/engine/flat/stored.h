// Weights as files store them: a few bits each, and a scale and a shift for 32 of an output.
//
// A weight is scale * level + shift, rounded as its type is. Products unpack some of a block into a
// room that stays in the nearest cache and go on from there as over plain weights: the same numbers
// in the same order, so that every sum is the same, bit by bit, while memory sends a fraction of the
// bytes.
//
// A block of 32 outputs is a list of groups of 32 inputs: the scales of the outputs and their shifts, as
// float32 or where that changes none in half the room; then words of the levels of each output that lie
// behind one another, the first in the lowest bits: [inputs / levels of a word][32].
#pragma once

#include "linear.h"

namespace flat {

// The scales of a group and behind them the shifts; halves are widened into a room.
struct Scales {
    const float *scales, *shifts;
    alignas(64) float room[2 * BLOCK];

    Scales(int form, const uint32_t* group) : scales((const float*)group) {
        if (form & HALVES) scales = widened((const Half*)group);
        shifts = scales + BLOCK;
    }
    Scales(const Scales&) = delete;

   private:
    __attribute__((noinline)) const float* widened(const Half* halves) {
        for (int64_t i = 0; i < 2 * BLOCK; i += LANES) store(room + i, load(halves + i));
        return room;
    }
};

// A level of each word, the one that begins at this bit, as a number.
template <int bits>
inline Vec level(Ints words, int from) {
#if defined(__AVX512F__)
    // Looked up by the four lowest bits alone, others need not be cleared.
    if (bits == 4)
        return _mm512_permutexvar_ps((__m512i)(words >> from),
                                     _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2,
                                                   1, 0));
#endif
    return __builtin_convertvector(words >> from & ((1 << bits) - 1), Vec);
}

// One weight of each of some outputs.
template <int bits>
inline Vec weight_of(Ints words, int from, Vec scales, Vec shifts) {
    return fma(level<bits>(words, from), scales, shifts);
}

// Pairs of bfloat16, the first in the low bits.
inline Ints paired(Vec first, Vec second) {
#if defined(__AVX512BF16__)
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                       8,  24, 9,  25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (Ints)_mm512_permutexvar_epi16(_mm512_loadu_si512(order), both);
#else
    const Ints low = as_ints(rounded(first)) >> 16 & 0xffff;
    return low | as_ints(rounded(second));
#endif
}

// Unpacks a group: as float32 [32][32], or as pairs of bfloat16 [16][32].
template <int bits>
void unpack_group(int form, const uint32_t* group, bool narrow, float* to) {
    constexpr int EACH = WORD_BITS / bits;
    const Scales of(form, group);
    const uint32_t* words = group + scales_words(form);
    for (int j = 0; j < VECTORS; j++) {
        const Vec scale = load(of.scales + j * LANES), shift = load(of.shifts + j * LANES);
        for (int64_t w = 0; w < GROUP / EACH; w++) {
            const Ints held = *(const IntsAnywhere*)(words + w * BLOCK + j * LANES);
            float* at = to + (narrow ? w * EACH / 2 : w * EACH) * BLOCK + j * LANES;
            if (narrow) {
#pragma GCC unroll 8
                for (int k = 0; k < EACH; k += 2)
                    store(at + k / 2 * BLOCK,
                          (Vec)paired(weight_of<bits>(held, k * bits, scale, shift),
                                      weight_of<bits>(held, (k + 1) * bits, scale, shift)));
            } else {
#pragma GCC unroll 8
                for (int k = 0; k < EACH; k++)
                    store(at + k * BLOCK, weight_of<bits>(held, k * bits, scale, shift));
            }
        }
    }
}

inline void ask_ahead(const uint32_t* from) { __builtin_prefetch((const char*)from + AHEAD); }

// Unpacks some groups one behind another, and asks memory for those to come.
inline void unpack(int form, const uint32_t* groups, int64_t count, bool narrow, float* to) {
    const int64_t words = group_words(form), floats = GROUP * BLOCK / (narrow ? 2 : 1);
    for (int64_t g = 0; g < count; g++, groups += words, to += floats) {
        for (int64_t i = 0; i < words; i += 16) ask_ahead(groups + i);
        if (level_bits(form) == 4)
            unpack_group<4>(form, groups, narrow, to);
        else
            unpack_group<8>(form, groups, narrow, to);
    }
}

// As `parts_over`, part after part of what is unpacked.
template <class Of, class Share, int most>
void stored_over(int form, const uint32_t* groups, int64_t count, bool narrow,
                 const typename Of::Row* rows, int64_t stride, int64_t n, float* sums, float* room) {
    constexpr int64_t COLUMNS = BLOCK * Share::WIDTH / Of::WIDTH;
    const int64_t steps = GROUP / (narrow ? 2 : 1), row_groups = (n + most - 1) / most;
    for (int64_t first = 0; first < count; first += AT_ONCE) {
        const int64_t some = first + AT_ONCE < count ? AT_ONCE : count - first;
        unpack(form, groups + first * group_words(form), some, narrow, room);
        const auto* weights = (const typename Of::Weight*)room;
        for (int64_t g = 0; g < row_groups; g++) {
            const int64_t i = n * g / row_groups, held = n * (g + 1) / row_groups - i;
            const auto* some_rows = rows + i * stride + first * steps * Of::NUMBERS;
            for (int64_t at = 0; at < BLOCK; at += COLUMNS)
                some_over<Share, most, NO_ROWS>(int(held), weights + at, some * steps,
                                              Ahead{(char*)room, 0}, first == 0, some_rows, stride,
                                              sums + i * BLOCK + at);
        }
    }
}

#if defined(__AVX512F__)
#define FLAT_STORED_AT_ONCE 1

// Rows whose sums fit into the registers beside weights that are being unpacked.
constexpr int MOST_BESIDE = 10;

// A vector of weights of a step of the sum, made of words in the registers.
template <class Of, int bits>
typename Of::Factor unpacked(Ints words, int k, Vec scale, Vec shift) {
    const Vec first = weight_of<bits>(words, k * bits, scale, shift);
    if constexpr (Of::PAIRED)
        return (__m512bh)paired(first, weight_of<bits>(words, (k + 1) * bits, scale, shift));
    else
        return first;
}

// `n` rows against a block: weights are unpacked where they are multiplied by. Not inlined, as above.
template <class Of, int bits, int n>
__attribute__((noinline)) void rows_beside(int form, const uint32_t* groups, int64_t count,
                                           const typename Of::Row* rows, int64_t stride,
                                           float* to) {
    constexpr int EACH = WORD_BITS / bits, STEP = Of::PAIRED ? 2 : 1;
    Vec sums[n][VECTORS] = {};
    for (int64_t g = 0; g < count; g++) {
        Vec scales[VECTORS], shifts[VECTORS];
        const Scales of(form, groups);
        for (int j = 0; j < VECTORS; j++)
            scales[j] = load(of.scales + j * LANES), shifts[j] = load(of.shifts + j * LANES);
        for (int64_t i = 0; i < scales_words(form); i += 16) ask_ahead(groups + i);
        groups += scales_words(form);
        for (int64_t w = 0; w < GROUP / EACH; w++, groups += BLOCK) {
            Ints words[VECTORS];
            for (int j = 0; j < VECTORS; j++) {
                ask_ahead(groups + j * LANES);
                words[j] = *(const IntsAnywhere*)(groups + j * LANES);
            }
#pragma GCC unroll 8
            for (int k = 0; k < EACH; k += STEP, rows++) {
                typename Of::Factor made[VECTORS];
                for (int j = 0; j < VECTORS; j++)
                    made[j] = unpacked<Of, bits>(words[j], k, scales[j], shifts[j]);
                add_to<Of, n>(sums, [&](int i) { return Of::again(rows[i * stride]); }, made);
            }
        }
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < VECTORS; j++) store(to + i * BLOCK + j * LANES, sums[i][j]);
}

template <class Of, int bits, int n = MOST_BESIDE>
void some_beside(int64_t rest, int form, const uint32_t* groups, int64_t count,
                 const typename Of::Row* rows, int64_t stride, float* sums) {
    if constexpr (n > 1)
        if (rest < n)
            return some_beside<Of, bits, n - 1>(rest, form, groups, count, rows, stride, sums);
    rows_beside<Of, bits, n>(form, groups, count, rows, stride, sums);
}
#endif

template <class Of>
void stored_block_over(int form, const uint32_t* groups, int64_t count, bool narrow,
                       const typename Of::Row* rows, int64_t stride, int64_t n, float* sums,
                       float* room) {
#ifdef FLAT_STORED_AT_ONCE
    if constexpr (Of::NUMBERS == 1)
        if (n <= MOST_BESIDE)
            return level_bits(form) == 4
                       ? some_beside<Of, 4>(n, form, groups, count, rows, stride, sums)
                       : some_beside<Of, 8>(n, form, groups, count, rows, stride, sums);
#endif
    if constexpr (MOST_OF_HALVES > 0)
        if (n > Of::MOST)
            return stored_over<Of, typename Of::Half, MOST_OF_HALVES>(form, groups, count, narrow,
                                                                      rows, stride, n, sums, room);
    stored_over<Of, Of, Of::MOST>(form, groups, count, narrow, rows, stride, n, sums, room);
}

}  // namespace flat
