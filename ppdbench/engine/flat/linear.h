// Products of rows with a block of 32 outputs of a weight: the block is streamed once for all rows.
//
// Blobs: float32 [blocks][in][32]; bfloat16 [blocks][in / 2][32][2], `in` filled up with zeros to
// a multiple of 32. Rows are of the same numbers, widened where plain vectors multiply bfloat16: a
// row meets many blocks. A row's sum runs over `in` from the first to the last, one number
// (bfloat16: a pair) after another, in every function below and for any number of rows.
#pragma once

#include "products.h"

namespace flat {

// Bytes that are asked for before they are needed: as many as memory sends in the meantime.
constexpr int64_t AHEAD = 8192;
// Of a block, what several groups of rows read in turn: of few rows each, that stays in the nearest
// cache, of many, in the next.
constexpr int64_t PASS_BYTES = 16384, LONG_PASS_BYTES = 65536;
// The same where it is columns that are read in turn: soon the second half waits for memory no more, and
// sums are not put aside too often.
constexpr int64_t FEW_BYTES = 8192;

// Rows whose sums with a whole block are held in the registers, beside weights that are widened, with half
// of a block and with two: no more than fit, nor than two groups of half as many are faster for.
#if defined(__AVX512F__)
constexpr int MOST_ROWS = 10, MOST_WIDENED = 10, MOST_OF_HALVES = 0, MOST_OF_TWO = 4;
#elif defined(__aarch64__)
constexpr int MOST_ROWS = 3, MOST_WIDENED = 3, MOST_OF_HALVES = 0, MOST_OF_TWO = 1;
#elif defined(__AVX__)
constexpr int MOST_ROWS = 3, MOST_WIDENED = 2, MOST_OF_HALVES = 6, MOST_OF_TWO = 1;
#else
constexpr int MOST_ROWS = 1, MOST_WIDENED = 1, MOST_OF_HALVES = 0, MOST_OF_TWO = 0;
#endif

// Steps of one block before it is another's turn, and rows for which there are turns: more compute enough
// meanwhile.
constexpr int64_t TURN = 8;
template <class Of>
constexpr int most_with_two() {
    return Of::MOST < 4 ? Of::MOST : 4;
}

// Rows from which on weights ahead are asked into the next cache, not into the nearest; and bytes of rows that
// leave no room in that.
constexpr int ANY_ROWS = 1, NO_ROWS = 1 << 10;
constexpr int64_t NEAR_BYTES = 16384;
constexpr int MANY_ROWS = 5;  // groups of more than that take long parts

// Rows of float32 against weights of float32: a block of them, or its first `count` vectors.
template <int count>
struct Floats {
    using Weight = float;
    using Row = float;
    using Factor = Vec;                     // of a sum: weights, or a number of a row again and again
    static constexpr int64_t STEP = BLOCK;  // weights of one step of the sum
    static constexpr int NUMBERS = 1;       // of a row in one step, one after another
    static constexpr bool PAIRED = false;   // true if each is two of bfloat16
    static constexpr int MOST = MOST_ROWS;  // rows that meet a whole block at once
    static constexpr int FEW = 5;           // rows that may leave it to the processor to ask ahead
    static constexpr int WIDTH = count;     // vectors of sums

    template <int which>
    static Factor weights(const float* from) {
        return read_once(load(from));
    }
    static Factor again(float number) { return all(number); }
    static Vec plus(Vec sum, Factor x, Factor w) { return fma(x, w, sum); }
};
struct OfFloats : Floats<VECTORS> {
    using Half = Floats<VECTORS / 2>;
};

// Pairs of bfloat16, widened: all first numbers, then all second ones.
template <int count>
struct Pairs : Floats<count> {
    using Weight = uint32_t;
    static constexpr int NUMBERS = 2, MOST = MOST_WIDENED, FEW = 1;

    template <int which>
    static Vec weights(const uint32_t* from) {
        return of_pairs<which>(*(const IntsAnywhere*)from);
    }
};
struct OfPairs : Pairs<VECTORS> {
    using Half = Pairs<VECTORS / 2>;
};

#ifdef FLAT_DOT_PRODUCTS

// Pairs of bfloat16 by the processor's own products of them.
struct OfPairsAtOnce {
    using Weight = uint32_t;
    using Row = uint32_t;
    using Factor = __m512bh;
    static constexpr int64_t STEP = BLOCK;
    static constexpr int NUMBERS = 1;
    static constexpr bool PAIRED = true;
    static constexpr int MOST = MOST_ROWS, FEW = 4;
    static constexpr int WIDTH = VECTORS;

    template <int which>
    static Factor weights(const uint32_t* from) {
        return (Factor)_mm512_loadu_si512(from);
    }
    static Factor again(uint32_t pair) { return (Factor)_mm512_set1_epi32(int32_t(pair)); }
    static Vec plus(Vec sum, Factor x, Factor w) { return (Vec)_mm512_dpbf16_ps((__m512)sum, w, x); }
};
#else
using OfPairsAtOnce = OfPairs;
#endif

// Memory that is asked for while rows are multiplied: so many bytes further on at every step.
struct Ahead {
    const char* at;
    int64_t each;

    // Into the nearest cache or the `next`; of a step of half a block half as much.
    template <bool whole, bool next>
    void ask() {
        constexpr int where = next ? 2 : 3;
        __builtin_prefetch(at, 0, where);
        if (whole) __builtin_prefetch(at + LINE / 2, 0, where);
        at += each;
    }
    static constexpr int64_t LINE = 128;  // the weights of a step
};
// Of weights a little further on; where nobody is to `ask`, what is there all the time is asked for.
inline Ahead ahead_of(const void* weights, bool ask, const void* there) {
    return ask ? Ahead{(const char*)weights + AHEAD, Ahead::LINE} : Ahead{(const char*)there, 0};
}

// Onto the sums of `n` rows a number of each, times weights.
template <class Of, int n, class Number>
__attribute__((always_inline)) inline void add_to(Vec (&sums)[n][Of::WIDTH], Number number,
                                                  const typename Of::Factor (&w)[Of::WIDTH]) {
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) {
        const auto x = number(i);
        for (int j = 0; j < Of::WIDTH; j++) sums[i][j] = Of::plus(sums[i][j], x, w[j]);
    }
}

// One step of `n` rows: a number of each after another, so that few weights are held at a time; of
// fewer rows than vectors all of theirs are held instead.
template <class Of, int n, int which = 0>
__attribute__((always_inline)) inline void step_over(Vec (&sums)[n][Of::WIDTH],
                                                     const typename Of::Weight* weights,
                                                     const typename Of::Row* rows,
                                                     int64_t stride) {
    auto number = [&](int i) { return Of::again(rows[i * stride + which]); };
    auto vector = [&](int j) { return Of::template weights<which>(weights + j * LANES); };
    if constexpr (n < Of::WIDTH) {
        typename Of::Factor x[n];
        for (int i = 0; i < n; i++) x[i] = number(i);
        for (int j = 0; j < Of::WIDTH; j++) {
            const auto w = vector(j);
            for (int i = 0; i < n; i++) sums[i][j] = Of::plus(sums[i][j], x[i], w);
        }
    } else {
        typename Of::Factor w[Of::WIDTH];
        for (int j = 0; j < Of::WIDTH; j++) w[j] = vector(j);
        add_to<Of, n>(sums, number, w);
    }
    if constexpr (which + 1 < Of::NUMBERS)
        step_over<Of, n, which + 1>(sums, weights, rows, stride);
}

// `n` rows against some steps of a block, on top of the sums [n, 32] so far; many of them may ask
// ahead into the `next` cache. Not inlined: compilers run out of registers where it is.
template <class Of, int n, bool next>
__attribute__((noinline)) Ahead rows_over(const typename Of::Weight* weights, int64_t steps,
                                          Ahead ahead, bool afresh, const typename Of::Row* rows,
                                          int64_t stride, float* sums) {
    Vec held[n][Of::WIDTH];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < Of::WIDTH; j++)
            held[i][j] = afresh ? Vec{} : load(sums + i * BLOCK + j * LANES);
    for (int64_t k = 0; k < steps; k++) {
        ahead.ask<Of::WIDTH == VECTORS, next>();
        step_over<Of, n>(held, weights + k * Of::STEP, rows + k * Of::NUMBERS, stride);
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < Of::WIDTH; j++) store(sums + i * BLOCK + j * LANES, held[i][j]);
    return ahead;
}

// The same for some number of rows up to `n`; from so many on they are `many`.
template <class Of, int n, int many>
Ahead some_over(int count, const typename Of::Weight* weights, int64_t steps, Ahead ahead,
                bool afresh, const typename Of::Row* rows, int64_t stride, float* sums) {
    if constexpr (n > 1)
        if (count < n)
            return some_over<Of, n - 1, many>(count, weights, steps, ahead, afresh, rows, stride,
                                              sums);
    return rows_over<Of, n, n >= many>(weights, steps, ahead, afresh, rows, stride, sums);
}

// Any number of rows: in groups of nearly one size, part after part of the block, all its columns
// at once or a `Share` of them. Each asks for its share of the next part, so that memory sends all
// the time; few rows that fit into one group do so if told to.
template <class Of, class Share, int most>
void parts_over(const typename Of::Weight* weights, int64_t steps, const typename Of::Row* rows,
                int64_t stride, int64_t n, float* sums, bool few_ask) {
    static_assert(Of::STEP * sizeof(*weights) == Ahead::LINE);
    constexpr int64_t COLUMNS = BLOCK * Share::WIDTH / Of::WIDTH;
    constexpr bool whole = COLUMNS == BLOCK;
    if (whole && n <= most) {
        const Ahead ahead = ahead_of(weights, few_ask || n > Of::FEW, sums);
        const bool is_full = n * stride * int64_t(sizeof(*rows)) > NEAR_BYTES;
        const auto over = is_full ? some_over<Share, most, ANY_ROWS> : some_over<Share, most, NO_ROWS>;
        over(int(n), weights, steps, ahead, true, rows, stride, sums);
        return;
    }
    const int64_t groups = (n + most - 1) / most, turns = groups * (BLOCK / COLUMNS);
    const bool is_soon = groups == 1 && Of::NUMBERS == 1;
    const int64_t bytes = most > MANY_ROWS && whole ? LONG_PASS_BYTES : is_soon ? FEW_BYTES : PASS_BYTES;
    const auto over = groups == 1 ? some_over<Share, most, NO_ROWS> : some_over<Share, most, ANY_ROWS>;
    const int64_t parts = (steps * Ahead::LINE + bytes - 1) / bytes;
    const int64_t part = (steps + parts - 1) / parts;  // of nearly one size, too
    for (int64_t first = 0; first < steps; first += part) {
        const int64_t some = first + part < steps ? part : steps - first;
        const auto* here = weights + first * Of::STEP;
        Ahead ahead{(const char*)(here + some * Of::STEP), Ahead::LINE / turns};
        for (int64_t g = 0; g < groups; g++) {
            const int64_t i = n * g / groups, count = n * (g + 1) / groups - i;
            const auto* some_rows = rows + i * stride + first * Of::NUMBERS;
            for (int64_t at = 0; at < BLOCK; at += COLUMNS)
                ahead = over(int(count), here + at, some, ahead, first == 0, some_rows, stride,
                             sums + i * BLOCK + at);
        }
    }
}

// Where few rows' sums of whole blocks fit into the registers more rows take half of the columns at
// a time: each weight and each number of a row is read less often then.
template <class Of>
void block_over(const typename Of::Weight* weights, int64_t steps, const typename Of::Row* rows,
                int64_t stride, int64_t n, float* sums, bool few_ask) {
    if constexpr (MOST_OF_HALVES > 0)
        if (n > Of::MOST)
            return parts_over<Of, typename Of::Half, MOST_OF_HALVES>(weights, steps, rows, stride,
                                                                     n, sums, few_ask);
    parts_over<Of, Of, Of::MOST>(weights, steps, rows, stride, n, sums, few_ask);
}

// `n` rows against two blocks at once.
template <class Of, int n>
__attribute__((noinline)) void rows_over_two(const Block& one, const Block& two, int64_t steps,
                                             Ahead of_one, Ahead of_two,
                                             const typename Of::Row* rows, int64_t stride) {
    const auto* left = (const typename Of::Weight*)one.weights;
    const auto* right = (const typename Of::Weight*)two.weights;
    Vec sums[2][n][Of::WIDTH] = {};
    for (int64_t k = 0; k < steps; k++) {
        of_one.ask<true, false>(), of_two.ask<true, false>();
        step_over<Of, n>(sums[0], left + k * Of::STEP, rows + k * Of::NUMBERS, stride);
        step_over<Of, n>(sums[1], right + k * Of::STEP, rows + k * Of::NUMBERS, stride);
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < Of::WIDTH; j++) {
            store(one.sums + i * BLOCK + j * LANES, sums[0][i][j]);
            store(two.sums + i * BLOCK + j * LANES, sums[1][i][j]);
        }
}
template <class Of, int n>
void some_over_two(int64_t count, const Block& one, const Block& two, int64_t steps, Ahead of_one,
                   Ahead of_two, const typename Of::Row* rows, int64_t stride) {
    if constexpr (n > 1)
        if (count < n)
            return some_over_two<Of, n - 1>(count, one, two, steps, of_one, of_two, rows, stride);
    rows_over_two<Of, n>(one, two, steps, of_one, of_two, rows, stride);
}

// Few rows against two blocks, at once or by turns: to the processor each is a stream of its own, and it
// fetches two sooner than one after the other.
template <class Of>
void two_blocks_over(const Block& one, const Block& two, int64_t steps,
                     const typename Of::Row* rows, int64_t stride, int64_t n, bool few_ask) {
    const bool ask = few_ask || n > Of::FEW;
    Ahead ahead[] = {ahead_of(one.weights, ask, one.sums), ahead_of(two.weights, ask, two.sums)};
    if constexpr (MOST_OF_TWO > 0)
        if (n <= MOST_OF_TWO)
            return some_over_two<Of, MOST_OF_TWO>(n, one, two, steps, ahead[0], ahead[1], rows,
                                                  stride);
    if constexpr (MOST_OF_TWO < most_with_two<Of>())
        for (int64_t first = 0; first < steps; first += TURN)
            for (int i = 0; i < 2; i++) {
                const Block& block = i ? two : one;
                const auto* weights = (const typename Of::Weight*)block.weights + first * Of::STEP;
                ahead[i] = some_over<Of, most_with_two<Of>(), NO_ROWS>(
                    int(n), weights, first + TURN < steps ? TURN : steps - first, ahead[i],
                    first == 0, rows + first * Of::NUMBERS, stride, block.sums);
            }
}

// Any number of rows, 16 at a time. One such group asks for weights a little ahead; of several, which
// find the block in a near cache, each asks for its share of the next, so that memory sends all the time.
template <class Tiles>
void tiled_block_over(Tiles& tiles, const Bfloat16* weights, int64_t deep, const Bfloat16* rows,
                      int64_t stride, int64_t n, float* sums) {
    const int64_t groups = (n + TILE_ROWS - 1) / TILE_ROWS, steps = deep / TILE_DEEP;
    const int64_t share = (TilesAhead::STEP / TILE_BYTES + groups - 1) / groups * TILE_BYTES;
    const char* ahead = (const char*)weights + (groups == 1 ? AHEAD : steps * TilesAhead::STEP);
    by_tiles(tiles, n, TILE_ROWS, BY_ROWS, [&](int64_t i, int64_t) {
        tiles_over(tiles, weights, deep, rows + i * stride, stride, sums + i * BLOCK, BLOCK,
                   {ahead + i / TILE_ROWS * steps * share, share});
    });
}

}  // namespace flat
