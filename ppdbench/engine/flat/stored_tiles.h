// Stored weights for matrix tiles: the levels of an output lie side by side, 32 of a group.
//
// So a group becomes rows of a tile as it is, and four bits are looked up: of an output and a group
// there are no more than 16 weights, made once, and one instruction picks 32 of them. Rows of the
// model are the columns of the other tile, as pairs of numbers one below another. A sum has the same
// products in the same order as over plain weights.
//
// A group is as in stored.h, but for its levels. Of 4 bits: [8][32] words of 16 bits, each the levels
// of four outputs that follow each other, the first in the lowest bits. Of 8 bits: [32][32] bytes.
#pragma once

#include "side_by_side.h"
#include "stored.h"

namespace flat {

// The outputs of one word of levels of 4 bits.
constexpr int OF_A_WORD = 4;

#if defined(__AVX512BF16__)

// Makes [32 outputs][32 inputs] of a group of 4 bits. Not inlined, so that all is built sooner.
__attribute__((noinline)) inline void unpack_nibbles(const Scales& of, const uint32_t* levels,
                                                     Bfloat16* to) {
    alignas(64) __m256i weights[BLOCK];
    const Vec each = __builtin_convertvector(counted(0), Vec);
    auto of_output = [&](int o) {
        return (__m512)fma(each, all(of.scales[o]), all(of.shifts[o]));
    };
#pragma GCC unroll 4
    for (int o = 0; o < BLOCK; o += 2)  // of two outputs at once, as that takes no longer
        _mm512_storeu_si512(weights + o,
                            (__m512i)_mm512_cvtne2ps_pbh(of_output(o + 1), of_output(o)));
    for (int o = 0; o < BLOCK; o += OF_A_WORD, levels += LANES) {
        const __m512i words = _mm512_loadu_si512(levels);
#pragma GCC unroll 4
        for (int k = 0; k < OF_A_WORD; k++)
            // Looked up by the five lowest bits, of which the highest makes no difference.
            _mm512_storeu_si512(to + (o + k) * GROUP,
                                _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4 * k),
                                                         _mm512_broadcast_i64x4(weights[o + k])));
    }
}

// The same of 8 bits.
__attribute__((noinline)) inline void unpack_bytes(const Scales& of, const uint32_t* levels,
                                                   Bfloat16* to) {
    const __m128i* bytes = (const __m128i*)levels;
    for (int o = 0; o < BLOCK; o++, bytes += 2) {
        auto half = [&](int i) {
            const __m512i numbers = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes + i));
            return (__m512)fma((Vec)_mm512_cvtepi32_ps(numbers), all(of.scales[o]),
                               all(of.shifts[o]));
        };
        _mm512_storeu_si512(to + o * GROUP, (__m512i)_mm512_cvtne2ps_pbh(half(1), half(0)));
    }
}

#else

template <class Level>  // the level of an output's input
inline void unpack_each(const Scales& of, Bfloat16* to, Level level) {
    for (int o = 0; o < BLOCK; o++)
        for (int i = 0; i < GROUP; i++) {
            const Vec weight = fma(all(float(level(o, i))), all(of.scales[o]), all(of.shifts[o]));
            to[o * GROUP + i].bits = uint16_t(uint32_t(as_ints(rounded(weight))[0]) >> 16);
        }
}
inline void unpack_nibbles(const Scales& of, const uint32_t* levels, Bfloat16* to) {
    unpack_each(of, to, [&](int o, int i) {
        return ((const uint16_t*)levels)[o / OF_A_WORD * GROUP + i] >> o % OF_A_WORD * 4 & 15;
    });
}
inline void unpack_bytes(const Scales& of, const uint32_t* levels, Bfloat16* to) {
    unpack_each(of, to, [&](int o, int i) { return ((const uint8_t*)levels)[o * GROUP + i]; });
}

#endif

// Unpacks a group, and asks memory for one to come.
inline void unpack_by_outputs(int form, const uint32_t* group, Bfloat16* to) {
    for (int64_t i = 0; i < group_words(form); i += 16) ask_ahead(group + i);
    const Scales of(form, group);
    const uint32_t* levels = group + scales_words(form);
    if (level_bits(form) == 4)
        unpack_nibbles(of, levels, to);
    else
        unpack_bytes(of, levels, to);
}

// Up to 32 rows against a block. Tiles multiply some groups behind those that are being unpacked: by
// then these have arrived in the nearest cache.
template <bool two, class Tiles>
void groups_over(Tiles& tiles, int form, const uint32_t* groups, const uint32_t* pairs,
                 const SideBySide& lie, int64_t n, float* sums, Bfloat16* room) {
    constexpr int64_t HELD = 4, BEHIND = 2;
    static_assert(HELD * GROUP * BLOCK / 2 <= UNPACKED_FLOATS);
    SumsByOutputs<two, Tiles> found(tiles, lie.pitch());
    auto place = [&](int64_t g) { return room + g % HELD * GROUP * BLOCK; };
    for (int64_t g = 0, count = lie.deep / GROUP; g < count + BEHIND; g++) {
        if (g < count) unpack_by_outputs(form, groups + g * group_words(form), place(g));
        if (g < BEHIND) continue;
        const uint32_t* here = pairs + (g - BEHIND) * GROUP / 2 * lie.pitch();
        found.multiply(place(g - BEHIND), GROUP, here, here + lie.tile());
    }
    found.store(n, sums, BLOCK);
}

// Any number of rows, 32 at a time.
template <class Tiles>
void blocks_by_outputs(Tiles& tiles, int form, const uint32_t* groups, const uint32_t* pairs,
                       const SideBySide& lie, int64_t n, float* sums, float* room) {
    by_tiles(tiles, n, 2 * TILE_ROWS, BY_OUTPUTS, [&](int64_t i, int64_t count) {
        const uint32_t* here = pairs + lie.at(i);
        if (count > TILE_ROWS)
            groups_over<true>(tiles, form, groups, here, lie, count, sums + i * BLOCK, (Bfloat16*)room);
        else
            groups_over<false>(tiles, form, groups, here, lie, count, sums + i * BLOCK, (Bfloat16*)room);
    });
}

}  // namespace flat
