// How the rows of a pass attend: in units of work, and where each puts what it gathers.
#pragma once

#include "attention.h"

namespace flat {

// Units of attention for each thread that are enough not to share out parts of the keys.
constexpr int64_t ENOUGH_UNITS = 3;

// An operation of a pass that attends. A unit is a head of keys, a block of rows and a part of the keys, or all
// of them.
struct Attending {
    const Pass& pass;
    const Operation& op;
    int64_t parts;  // of the longest list
    int threads;
    float* room;    // for what is gathered

    int64_t groups() const { return op.heads / op.kv_heads; }
    int64_t units() const { return op.kv_heads * row_blocks() * parts_apart(); }
    int64_t rows_of_block() const {
        const int64_t rows = ROWS_AT_ONCE / groups();
        return rows > 1 ? rows : 1;
    }
    int64_t row_blocks() const { return (pass.rows + rows_of_block() - 1) / rows_of_block(); }
    // Parts that are units of their own: where there are too few for all threads else. Elsewhere a
    // unit takes them in turn.
    int64_t parts_apart() const {
        return op.kv_heads * row_blocks() >= ENOUGH_UNITS * threads ? 1 : parts;
    }
    // True if parts are to be joined by whoever merges them.
    bool is_apart() const { return parts_apart() > 1 || parts == 1; }

    Gathered gathered(int64_t part, int64_t row, int64_t head) const {
        const int64_t at = (part * pass.rows + row) * op.heads + head;
        return {room + at * Gathered::floats(op.value_dim), op.value_dim};
    }
    int64_t gathered_floats() const {
        return pass.rows * op.heads * parts_apart() * Gathered::floats(op.value_dim);
    }
};

// One unit, the way to multiply being one of products.h. `queries` are those of row 0, `stride` apart; a
// thread works in a room of so many floats.
template <class T>
void attend(const Attending& whole, int path, int64_t unit, const T* queries, int64_t stride,
            float* room);
template <class T>
int64_t floats_to_attend(const Attending& whole, int path);

}  // namespace flat
