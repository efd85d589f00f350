// Products of rows with a block of 32 outputs of a weight: the block is streamed once for all rows.
//
// Blobs: float32 [blocks][in][32]; bfloat16 [blocks][in / 2][32][2], `in` filled up with zeros to
// a multiple of 32. Rows are of the same numbers, widened where plain vectors multiply bfloat16: a
// row meets many blocks. A row's sum runs over `in` from the first to the last, one number
// (bfloat16: a pair) after another, in every function below and for any number of rows.
#pragma once

#include "simd.h"
#include "tiles.h"

namespace flat {

enum Path { VECTORS_ONLY, DOT_PRODUCTS, TILES, EMULATED_TILES };

// Bytes that are asked for before they are needed: as many as memory sends in the meantime.
constexpr int64_t AHEAD = 4096;
// Of a block, what several groups of rows read in turn: it stays in the nearest cache.
constexpr int64_t PASS_BYTES = 8192;

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
    using Row = float;
    static constexpr int64_t STEP = BLOCK;  // weights of one step of the sum
    static constexpr int64_t NUMBERS = 1;   // of a row in one step
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
    using Row = float;
    static constexpr int64_t STEP = BLOCK;
    static constexpr int64_t NUMBERS = 2;
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
    static void add(Vec* sums, const float* row, const Weights& w) {
        Vec even = all(row[0]), odd = all(row[1]);
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
    using Row = uint32_t;
    static constexpr int64_t STEP = BLOCK;
    static constexpr int64_t NUMBERS = 1;
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

// Memory that is asked for while rows are multiplied: so many bytes further on at every step.
struct Ahead {
    const char* at;
    int64_t each;

    void ask() {
        __builtin_prefetch(at);
        __builtin_prefetch(at + LINE / 2);
        at += each;
    }
    static constexpr int64_t LINE = 128;  // the weights of a step
};

// `n` rows against some steps of a block, on top of the sums [n, 32] so far.
template <class Of, int n>
Ahead rows_over(const typename Of::Weight* weights, int64_t steps, Ahead ahead, bool afresh,
                const typename Of::Row* rows, int64_t stride, float* sums) {
    Vec held[n][VECTORS];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < VECTORS; j++)
            held[i][j] = afresh ? Vec{} : load(sums + i * BLOCK + j * LANES);
    for (int64_t k = 0; k < steps; k++) {
        ahead.ask();
        const auto block = Of::weights(weights + k * Of::STEP);
#pragma GCC unroll 16
        for (int i = 0; i < n; i++) Of::add(held[i], rows + i * stride + k * Of::NUMBERS, block);
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < VECTORS; j++) store(sums + i * BLOCK + j * LANES, held[i][j]);
    return ahead;
}

template <class Of, int n = MOST_ROWS>
Ahead some_over(int count, const typename Of::Weight* weights, int64_t steps, Ahead ahead,
                bool afresh, const typename Of::Row* rows, int64_t stride, float* sums) {
    if constexpr (n > 1)
        if (count < n)
            return some_over<Of, n - 1>(count, weights, steps, ahead, afresh, rows, stride, sums);
    return rows_over<Of, n>(weights, steps, ahead, afresh, rows, stride, sums);
}

// Any number of rows: in groups of nearly one size, part after part of the block. Each group asks
// for its share of the next part, so that memory sends all the time.
template <class Of>
void block_over(const typename Of::Weight* weights, int64_t steps, const typename Of::Row* rows,
                int64_t stride, int64_t n, float* sums) {
    static_assert(Of::STEP * sizeof(*weights) == Ahead::LINE);
    const int64_t groups = (n + MOST_ROWS - 1) / MOST_ROWS;
    const int64_t part = groups == 1 ? steps : PASS_BYTES / Ahead::LINE;
    for (int64_t first = 0; first < steps; first += part) {
        const int64_t some = first + part < steps ? part : steps - first;
        const auto* here = weights + first * Of::STEP;
        Ahead ahead{(const char*)here + AHEAD, Ahead::LINE};
        if (groups > 1) ahead = {(const char*)(here + some * Of::STEP), Ahead::LINE / groups};
        for (int64_t g = 0; g < groups; g++) {
            const int64_t i = n * g / groups, count = n * (g + 1) / groups - i;
            ahead = some_over<Of>(int(count), here, some, ahead, first == 0,
                                  rows + i * stride + first * Of::NUMBERS, stride, sums + i * BLOCK);
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

// Rows and weights are float32, or bfloat16 with `deep` a multiple of 32; what rows are then, the
// path says.
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
    if (path == VECTORS_ONLY)
        return block_over<OfPairs>((const uint32_t*)weights, deep / 2, (const float*)rows, stride,
                                   n, sums);
    block_over<OfPairsAtOnce>((const uint32_t*)weights, deep / 2,
                              (const OfPairsAtOnce::Row*)rows, stride / 2, n, sums);
}

}  // namespace flat
