// Weights and the blobs that kernels stream through: how numbers lie there and how they get there.
#pragma once

#include "pool.h"
#include "tiles.h"

namespace flat {

// The offsets of a weight's numbers in its blob.
struct Layout {
    int64_t in, deep;
    bool narrow;

    Layout(int64_t in, bool narrow)
        : in(in), deep(narrow ? whole_tiles(in) : in), narrow(narrow) {}
    int64_t at(int64_t out, int64_t k) const {
        const int64_t block = out / BLOCK * BLOCK * deep, column = out % BLOCK;
        if (!narrow) return block + k * BLOCK + column;
        return block + k / 2 * 2 * BLOCK + column * 2 + k % 2;
    }
};

inline int64_t blocks(int64_t out) { return (out + BLOCK - 1) / BLOCK; }

// What becomes of a weight [out, in] and its blob: either is made of the other, or both are compared bit by
// bit.
enum Meeting { TO_BLOB, TO_ROWS, COMPARE, MEETINGS };

// Brings them together: `row_step` and `step` are from a row to the next and from a number. False if a
// comparison finds a difference.
bool pack(void* blob, void* rows, int64_t out, int64_t in, int64_t row_step, int64_t step,
          bool narrow, int how, Pool& pool);
// Lays a weight of whole blocks out where it lies. False if what came of it is not what was there, -1 where
// there is not enough memory.
int pack_in_place(void* rows, int64_t out, int64_t in, bool narrow, Pool& pool);

// Adds numbers up, which takes what reading them does.
double added_up(const float* from, int64_t n, Pool& pool);

}  // namespace flat
