// Rows as tiles of columns take them: pairs of numbers, those of 16 rows side by side.
#pragma once

#include "products.h"
#include "rows.h"

namespace flat {

static_assert(GROUP == TILE_DEEP, "a product of tiles takes a group");

// Writes the first `n` columns of 16 rows of words, as many of each as `count` says: a column becomes what
// lies side by side. Rows are `pitch` apart, of whole fours, columns `stride`. Not inlined, so that all is
// built sooner.
template <class Word>
__attribute__((noinline)) void put_columns(const Word* rows, int64_t pitch, int64_t n, int64_t count,
                                           Word* to, int64_t stride) {
    static_assert(sizeof(Word) == sizeof(float), "words");
#if defined(__AVX512F__)
    const __mmask16 some = __mmask16((1u << count) - 1);
    for (int64_t j = 0; j < n; j += 4) {
        Vec columns[4];
        four_columns([&](int i) { return (const float*)rows + i * pitch + j; }, columns);
        for (int i = 0; i < 4 && j + i < n; i++)
            _mm512_mask_storeu_ps((float*)to + (j + i) * stride, some, columns[i]);
    }
#else
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < count; i++) to[j * stride + i] = rows[i * pitch + j];
#endif
}

// Rounds 32 numbers of up to 16 rows and writes the first pair of each, then the next, `pitch` apart. A row
// has no more than `rest` numbers.
template <class Row>  // the numbers of row i
void lay_pairs(Row row, int64_t count, int64_t rest, uint32_t* to, int64_t pitch) {
    constexpr int64_t EACH = GROUP / 2;
    alignas(64) uint32_t found[TILE_ROWS][EACH] = {};
    for (int64_t i = 0; i < count; i++) narrowed(row(i), (Bfloat16*)found[i], rest, GROUP);
    if (pitch == 1) return (void)memcpy(to, found[0], sizeof found[0]);
    put_columns(found[0], EACH, EACH, count, to, pitch);
}

// Sums of 32 outputs with up to 32 rows, which are columns of pairs; those of the second 16 where there
// are `two`. From a pair of a row to its next it is `pitch`.
template <bool two, class Tiles>
class SumsByOutputs {
   public:
    SumsByOutputs(Tiles& tiles, int64_t pitch) : tiles_(tiles), stride_(pitch * 4) {
        tiles_.template zero<SUM_LEFT>();
        tiles_.template zero<SUM_RIGHT>();
        if (two) tiles_.template zero<SECOND_LEFT>();
        if (two) tiles_.template zero<SECOND_RIGHT>();
    }
    // Adds 32 numbers of each output, `stride` apart, times 16 pairs of each row; those of the second
    // 16 are elsewhere.
    void multiply(const Bfloat16* outputs, int64_t stride, const uint32_t* pairs,
                  const uint32_t* others) {
        const int64_t bytes = stride * sizeof(Bfloat16);
        tiles_.template load<ROWS>(pairs, stride_);
        if (two) tiles_.template load<SECOND_ROWS>(others, stride_);
        tiles_.template load<COLUMNS>(outputs, bytes);
        tiles_.template multiply<SUM_LEFT, COLUMNS, ROWS>();
        if (two) tiles_.template multiply<SECOND_LEFT, COLUMNS, SECOND_ROWS>();
        tiles_.template load<COLUMNS>(outputs + TILE_ROWS * stride, bytes);
        tiles_.template multiply<SUM_RIGHT, COLUMNS, ROWS>();
        if (two) tiles_.template multiply<SECOND_RIGHT, COLUMNS, SECOND_ROWS>();
    }
    // Writes the 32 sums of each of `n` rows, which come to lie side by side.
    void store(int64_t n, float* sums, int64_t stride) const {
        const int64_t first = two ? TILE_ROWS : n;
        put<SUM_LEFT>(first, sums, stride);
        put<SUM_RIGHT>(first, sums + TILE_ROWS, stride);
        if (two) put<SECOND_LEFT>(n - first, sums + first * stride, stride);
        if (two) put<SECOND_RIGHT>(n - first, sums + first * stride + TILE_ROWS, stride);
    }
    // Writes them as they are: those of an output side by side, from one to the next `stride`.
    void store_by_outputs(float* sums, int64_t stride) const {
        put_down<SUM_LEFT>(sums, stride);
        put_down<SUM_RIGHT>(sums + TILE_ROWS * stride, stride);
        if (two) put_down<SECOND_LEFT>(sums + TILE_ROWS, stride);
        if (two) put_down<SECOND_RIGHT>(sums + TILE_ROWS * stride + TILE_ROWS, stride);
    }

   private:
    template <int tile>
    void put_down(float* to, int64_t stride) const {
        tiles_.template store<tile>(to, stride * sizeof(float));
    }
    template <int tile>
    void put(int64_t n, float* to, int64_t stride) const {
        if (n == 1) return put_down<tile>(to, 1);
        alignas(64) float found[TILE_ROWS * TILE_ROWS] = {};
        put_down<tile>(found, TILE_ROWS);
        put_columns(found, TILE_ROWS, n, TILE_ROWS, to, stride);
    }

    Tiles& tiles_;
    const int64_t stride_;
};

// Rows that a product reads: the numbers of 16 side by side, in pairs, and those of the next 16
// behind them all. As many as there are where these are fewer.
struct SideBySide {
    int64_t rows, deep;

    int64_t pitch() const { return rows < TILE_ROWS ? rows : TILE_ROWS; }
    int64_t tile() const { return deep / 2 * pitch(); }  // pairs from one tile of rows to the next
    int64_t pairs() const { return (rows + TILE_ROWS - 1) / TILE_ROWS * tile(); }
    int64_t at(int64_t row) const { return row / TILE_ROWS * tile() + row % TILE_ROWS; }

    // They are laid so in units: a group of inputs of one tile of rows.
    int64_t groups() const { return deep / GROUP; }
    int64_t units() const { return (rows + TILE_ROWS - 1) / TILE_ROWS * groups(); }
    int64_t first_row(int64_t unit) const { return unit / groups() * TILE_ROWS; }
    int64_t first_input(int64_t unit) const { return unit % groups() * GROUP; }
    int64_t rows_from(int64_t first) const {
        return rows - first < TILE_ROWS ? rows - first : TILE_ROWS;
    }
    // Rounds the numbers of one unit, of which each row has no more than `rest`.
    template <class Row>  // the numbers of the unit's row i
    void lay(Row row, int64_t first, int64_t input, int64_t rest, uint32_t* pairs) const {
        lay_pairs(row, rows_from(first), rest, pairs + at(first) + input / 2 * pitch(), pitch());
    }
};

}  // namespace flat
