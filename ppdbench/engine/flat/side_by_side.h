// Rows as tiles of columns take them: pairs of numbers, those of 16 rows side by side.
#pragma once

#include <utility>

#include "products.h"
#include "rows.h"

namespace flat {

static_assert(GROUP == TILE_DEEP, "a product of tiles takes a group");

// Rows of a square of 16 become its columns. Not inlined, so that all is built sooner.
template <class Word>
__attribute__((noinline)) void square_transposed(Word (&square)[TILE_ROWS][TILE_ROWS]) {
    static_assert(sizeof(Word) == sizeof(float), "words");
#if defined(__AVX512F__)
    Vec held[TILE_ROWS];
    for (int i = 0; i < TILE_ROWS; i++) held[i] = load((const float*)square[i]);
    transpose(held);
    for (int i = 0; i < TILE_ROWS; i++) store((float*)square[i], held[i]);
#else
    for (int i = 0; i < TILE_ROWS; i++)
        for (int j = 0; j < i; j++) std::swap(square[i][j], square[j][i]);
#endif
}

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
        constexpr int64_t EACH = GROUP / 2;
        alignas(64) uint32_t found[TILE_ROWS][EACH] = {};
        const int64_t count = rows_from(first);
        for (int64_t i = 0; i < count; i++) narrowed(row(i), (Bfloat16*)found[i], rest, GROUP);
        uint32_t* to = pairs + at(first) + input / 2 * pitch();
        if (pitch() == 1) return (void)memcpy(to, found[0], sizeof found[0]);
        square_transposed(found);
        for (int64_t j = 0; j < EACH; j++, to += pitch()) memcpy(to, found[j], count * sizeof *to);
    }
};

}  // namespace flat
