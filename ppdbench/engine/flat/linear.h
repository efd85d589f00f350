// Products of rows with a block of 32 outputs of a weight: the block is streamed once for all rows.
//
// Blobs: float32 [blocks][in][32]; bfloat16 [blocks][in / 2][32][2], `in` filled up with zeros to
// a multiple of 32. A row's sum runs over `in` from the first to the last, one number (bfloat16: a
// pair) after another, in every function below and for any number of rows.
#pragma once

#include "simd.h"
#include "tiles.h"

namespace flat {

enum Path { VECTORS_ONLY, DOT_PRODUCTS, TILES, EMULATED_TILES };

// Bytes that are asked for before they are needed: as many as memory sends in the meantime.
constexpr int64_t AHEAD = 4096;
// Of a block, what several groups of rows read in turn: it stays in the nearest cache.
constexpr int64_t PASS_BYTES = 16384;

#if defined(__AVX512F__)
constexpr int MOST_ROWS = 12;  // sums of so many rows fit into the registers
#elif defined(__aarch64__)
constexpr int MOST_ROWS = 3;
#elif defined(__AVX__)
constexpr int MOST_ROWS = 3;
#else
constexpr int MOST_ROWS = 1;
#endif

// Rows of float32 against weights of float32.
struct OfFloats {
    using Weight = float;
    static constexpr int64_t STEP = BLOCK;  // weights of one step of the sum
    struct Weights {
        Vec held[VECTORS];
    };
    static Weights weights(const float* from) {
        Weights w;
        for (int j = 0; j < VECTORS; j++) w.held[j] = load(from + j * LANES);
        return w;
    }
    static void add(Vec* sums, const float* row, const Weights& w) {
        Vec x = all(*row);
        for (int j = 0; j < VECTORS; j++) sums[j] = fma(x, w.held[j], sums[j]);
    }
};

// Pairs of bfloat16, widened.
struct OfPairs {
    using Weight = uint32_t;
    static constexpr int64_t STEP = BLOCK;
    struct Weights {
        Vec even[VECTORS], odd[VECTORS];
    };
    static Weights weights(const uint32_t* from) {
        Weights w;
        for (int j = 0; j < VECTORS; j++) {
            Ints pairs = *(const IntsAnywhere*)(from + j * LANES);
            w.even[j] = as_floats(pairs << 16);
            w.odd[j] = as_floats(pairs & (int32_t)0xffff0000);
        }
        return w;
    }
    static void add(Vec* sums, const uint32_t* row, const Weights& w) {
        Vec even = as_floats(all_ints(int32_t(*row << 16)));
        Vec odd = as_floats(all_ints(int32_t(*row & 0xffff0000)));
        for (int j = 0; j < VECTORS; j++) {
            sums[j] = fma(even, w.even[j], sums[j]);
            sums[j] = fma(odd, w.odd[j], sums[j]);
        }
    }
};

#if defined(__AVX512BF16__)
#define FLAT_DOT_PRODUCTS 1

// Pairs of bfloat16 by the processor's own products of them.
struct OfPairsAtOnce {
    using Weight = uint32_t;
    static constexpr int64_t STEP = BLOCK;
    struct Weights {
        __m512bh held[VECTORS];
    };
    static Weights weights(const uint32_t* from) {
        Weights w;
        for (int j = 0; j < VECTORS; j++)
            w.held[j] = (__m512bh)_mm512_loadu_si512(from + j * LANES);
        return w;
    }
    static void add(Vec* sums, const uint32_t* row, const Weights& w) {
        __m512bh x = (__m512bh)_mm512_set1_epi32(int32_t(*row));
        for (int j = 0; j < VECTORS; j++)
            sums[j] = (Vec)_mm512_dpbf16_ps((__m512)sums[j], w.held[j], x);
    }
};
#else
using OfPairsAtOnce = OfPairs;
#endif

// `n` rows against the steps [first, end) of a block, on top of the sums [n, 32] so far.
template <class Of, int n>
void rows_over(const typename Of::Weight* weights, int64_t first, int64_t end,
               const typename Of::Weight* rows, int64_t stride, float* sums) {
    Vec held[n][VECTORS];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < VECTORS; j++)
            held[i][j] = first ? load(sums + i * BLOCK + j * LANES) : Vec{};
    for (int64_t k = first; k < end; k++) {
        const auto* w = weights + k * Of::STEP;
        __builtin_prefetch((const char*)w + AHEAD);
        __builtin_prefetch((const char*)w + AHEAD + 64);
        const auto block = Of::weights(w);
#pragma GCC unroll 16
        for (int i = 0; i < n; i++) Of::add(held[i], rows + i * stride + k, block);
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < VECTORS; j++) store(sums + i * BLOCK + j * LANES, held[i][j]);
}

template <class Of, int n = MOST_ROWS>
void some_over(int count, const typename Of::Weight* weights, int64_t first, int64_t end,
               const typename Of::Weight* rows, int64_t stride, float* sums) {
    if (count == n) return rows_over<Of, n>(weights, first, end, rows, stride, sums);
    if constexpr (n > 1) some_over<Of, n - 1>(count, weights, first, end, rows, stride, sums);
}

// Any number of rows: in groups of nearly one size, part after part of the block.
template <class Of>
void block_over(const typename Of::Weight* weights, int64_t steps, const typename Of::Weight* rows,
                int64_t stride, int64_t n, float* sums) {
    const int64_t groups = (n + MOST_ROWS - 1) / MOST_ROWS;
    const int64_t part = groups == 1 ? steps : PASS_BYTES / (Of::STEP * 4);
    for (int64_t first = 0; first < steps; first += part) {
        const int64_t end = first + part < steps ? first + part : steps;
        for (int64_t g = 0; g < groups; g++) {
            const int64_t i = n * g / groups, count = n * (g + 1) / groups - i;
            some_over<Of>(int(count), weights, first, end, rows + i * stride, stride,
                          sums + i * BLOCK);
        }
    }
}

template <class Tiles>
void tiled_block_over(const Bfloat16* weights, int64_t deep, const Bfloat16* rows, int64_t stride,
                      int64_t n, float* sums) {
    Tiles tiles;
    for (int64_t i = 0; i < n; i += 2 * TILE_ROWS) {
        const int count = int(n - i < 2 * TILE_ROWS ? n - i : 2 * TILE_ROWS);
        tiles.shape(count);
        auto over = count > TILE_ROWS ? tiles_over<true, Tiles> : tiles_over<false, Tiles>;
        over(tiles, weights, deep, rows + i * stride, stride, sums + i * BLOCK,
             AHEAD / sizeof(Bfloat16));
    }
}

// Rows and weights are float32, or pairs of bfloat16 with `deep` a multiple of 32.
inline void products(int path, bool narrow, const void* weights, int64_t deep, const void* rows,
                     int64_t stride, int64_t n, float* sums) {
    if (!narrow)
        return block_over<OfFloats>((const float*)weights, deep, (const float*)rows, stride, n,
                                    sums);
    if (path == TILES)
        return tiled_block_over<ProcessorTiles>((const Bfloat16*)weights, deep,
                                                (const Bfloat16*)rows, stride, n, sums);
    if (path == EMULATED_TILES)
        return tiled_block_over<EmulatedTiles>((const Bfloat16*)weights, deep,
                                               (const Bfloat16*)rows, stride, n, sums);
    auto over = path == DOT_PRODUCTS ? block_over<OfPairsAtOnce> : block_over<OfPairs>;
    over((const uint32_t*)weights, deep / 2, (const uint32_t*)rows, stride / 2, n, sums);
}

}  // namespace flat
