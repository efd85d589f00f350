// Attention of a row over a list of keys: slots of the cache in the order of positions.
//
// Scores of 16 keys are summed side by side, the first 16 of the list, then the next, and what they
// weigh is gathered in that order, part after part of 128. Where a key stands in the list is all
// that matters: not its slot, not the rows of the pass, not the threads. So a branch of a tree
// gives what a chain of the same tokens does.
#pragma once

#include <cmath>

#include "operations.h"
#include "simd.h"

namespace flat {

constexpr int64_t PART = 128;       // keys of one unit of work
constexpr int64_t ROWS_AT_ONCE = 12;  // of queries that share keys, all heads counted

// The list of one row.
struct Sight {
    int64_t before;      // slots from the first on
    const int32_t* own;  // slots behind those
    int64_t first, end;  // what a window leaves of the list

    int64_t slot(int64_t i) const { return i < before ? i : own[i - before]; }
};

// How many of a row's own keys are out of its window; these are few.
inline int64_t out_of_window(const Pass& pass, const int32_t* own, int64_t count, int64_t oldest) {
    int64_t dropped = 0;
    for (; dropped < count; dropped++) {
        int64_t row = own[dropped] - pass.start;
        if (row < 0 || row >= pass.rows || pass.slots[row] != own[dropped])
            for (row = 0; row < pass.rows && pass.slots[row] != own[dropped];) row++;
        if (row == pass.rows || pass.positions[row] >= oldest) break;
    }
    return dropped;
}

inline Sight sight(const Pass& pass, int64_t row, int64_t window) {
    Sight found{};
    int64_t count = 0;
    if (pass.causal) {
        found.before = pass.start + row + 1;
    } else {
        found.before = pass.reach ? pass.reach[row] : pass.start;
        found.own = pass.seen + pass.offsets[row];
        count = pass.offsets[row + 1] - pass.offsets[row];
    }
    found.end = found.before + count;
    if (window > 0) {
        const int64_t position = pass.causal ? pass.start + row : pass.positions[row];
        const int64_t oldest = position - window + 1;
        if (oldest > 0) found.first = oldest < found.before ? oldest : found.before;
        if (oldest > found.before) found.first += out_of_window(pass, found.own, count, oldest);
    }
    return found;
}

// Keys [head_dim][16] and values [16][head_dim] of 16 places of a list, widened.
template <class T>
struct Tiles16 {
    float *keys, *values;
    int64_t dim;
    int64_t held[TILE] = {};
    bool in_order = false;  // places hold the slots of the same numbers, all of them

    void clear() {
        in_order = false;
        for (auto& slot : held) slot = -1;
    }
    // Has what stands at [at + low, at + high) of a list in its place.
    void fill(const Sight& seen, int64_t at, int low, int high, const T* key_rows,
              const T* value_rows) {
        const bool ordered = seen.before >= at + high;
        if (ordered && in_order) return;
        for (int j = low; j < high; j++) place(j, seen.slot(at + j), key_rows, value_rows);
        in_order = ordered && low == 0 && high == TILE;
    }
    // Puts the key and the value of a slot in their place, if they are not there.
    void place(int j, int64_t slot, const T* key_rows, const T* value_rows) {
        if (held[j] == slot) return;
        held[j] = slot;
        const T *key = key_rows + slot * dim, *value = value_rows + slot * dim;
        for (int64_t d = 0; d < dim; d += LANES) {
            const int64_t n = dim - d < LANES ? dim - d : LANES;
            float lanes[LANES];
            store(lanes, load_some(key + d, n));
            for (int64_t i = 0; i < n; i++) keys[(d + i) * TILE + j] = lanes[i];
            store_some(values + j * dim + d, load_some(value + d, n), n);
        }
    }
};

// What a row's head has gathered: the weighted values, the largest score, the sum of weights.
struct Gathered {
    float *values, &peak, &total;

    Gathered(float* at, int64_t dim) : values(at), peak(at[dim]), total(at[dim + 1]) {}
    static int64_t floats(int64_t dim) { return (dim + 2 + TILE - 1) / TILE * TILE; }
    void clear() {
        for (float* at = values; at < &peak; at++) *at = 0;
        peak = -INFINITY, total = 0;
    }
};

// Scores of `n` queries [n][dim] and 16 keys; even and odd numbers of a head are summed apart.
template <int n>
void scores(const float* queries, const float* keys, int64_t dim, Vec (*found)[TILE_VECTORS]) {
    Vec even[n][TILE_VECTORS], odd[n][TILE_VECTORS];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < TILE_VECTORS; j++) even[i][j] = odd[i][j] = Vec{};
    int64_t d = 0;
    for (; d + 1 < dim; d += 2)
        for (int j = 0; j < TILE_VECTORS; j++) {
            Vec one = load(keys + d * TILE + j * LANES);
            Vec two = load(keys + (d + 1) * TILE + j * LANES);
            for (int i = 0; i < n; i++) {
                even[i][j] = fma(all(queries[i * dim + d]), one, even[i][j]);
                odd[i][j] = fma(all(queries[i * dim + d + 1]), two, odd[i][j]);
            }
        }
    for (int j = 0; j < TILE_VECTORS; j++)
        for (int i = 0; i < n; i++) {
            if (d < dim)
                even[i][j] = fma(all(queries[i * dim + d]), load(keys + d * TILE + j * LANES), even[i][j]);
            found[i][j] = even[i][j] + odd[i][j];
        }
}

// Adds places [low, high) of a tile, whose scores are there, to what a head has gathered.
inline void gather(const Vec* scored, int low, int high, float scale, float softcap,
                   const float* values, int64_t dim, Gathered so_far) {
    float weights[TILE];
    Vec most = all(-INFINITY);
    for (int j = 0; j < TILE_VECTORS; j++) {
        Vec s = scored[j] * scale;
        if (softcap > 0) s = tanh(s / softcap) * softcap;
        store(weights + j * LANES, s);
    }
    for (int i = 0; i < TILE; i++)
        if (i < low || i >= high) weights[i] = -INFINITY;
    for (int j = 0; j < TILE_VECTORS; j++) most = larger(most, load(weights + j * LANES));
    const float peak = largest(most);
    if (peak > so_far.peak) {
        const float shrunk = exp(all(so_far.peak - peak))[0];
        so_far.peak = peak;
        so_far.total *= shrunk;
        for (int64_t d = 0; d < dim; d += LANES)
            store_some(so_far.values + d, load_some(so_far.values + d, dim - d) * shrunk, dim - d);
    }
    Vec total{};
    for (int j = 0; j < TILE_VECTORS; j++) {
        Vec w = exp(load(weights + j * LANES) - so_far.peak);
        store(weights + j * LANES, w);
        total = total + w;
    }
    so_far.total += sum(total);
    for (int64_t d = 0; d < dim; d += LANES) {
        Vec sums = load_some(so_far.values + d, dim - d);
        for (int i = low; i < high; i++)
            sums = fma(all(weights[i]), load_some(values + i * dim + d, dim - d), sums);
        store_some(so_far.values + d, sums, dim - d);
    }
}

// Puts what a later part gathered behind what the earlier ones did.
inline void join(Gathered so_far, Gathered later, int64_t dim) {
    const float peak = later.peak > so_far.peak ? later.peak : so_far.peak;
    const float one = exp(all(so_far.peak - peak))[0], two = exp(all(later.peak - peak))[0];
    so_far.peak = peak;
    so_far.total = so_far.total * one + later.total * two;
    for (int64_t d = 0; d < dim; d += LANES) {
        Vec v = load_some(so_far.values + d, dim - d) * one;
        v = fma(load_some(later.values + d, dim - d), all(two), v);
        store_some(so_far.values + d, v, dim - d);
    }
}

// Some rows of a pass, all query heads of one KV head, over parts of their lists.
template <class T>
class Unit {
   public:
    // `queries` are those of row 0, `stride` apart; `room` is the thread's.
    Unit(const Pass& pass, const Operation& op, int64_t kv_head, int64_t first_row, int64_t end_row,
         const float* queries, int64_t stride, float* room)
        : pass_(pass), op_(op), dim_(op.head_dim), groups_(op.heads / op.kv_heads),
          kv_head_(kv_head), first_row_(first_row), end_row_(end_row),
          queries_(queries + kv_head * groups_ * dim_), stride_(stride),
          tiles_{room, room + dim_ * TILE, dim_} {
        for (int64_t r = first_row; r < end_row; r++) sights_[r - first_row] = sight(pass, r, op.window);
    }
    static int64_t room_floats(int64_t dim) { return 2 * dim * TILE; }

    // `place(row, group)` says where a head of a row gathers.
    template <class Place>
    void run(int64_t part, Place place) {
        const int64_t offset = kv_head_ * pass_.capacity * dim_;
        const T* keys = (const T*)pass_.keys[op_.layer] + offset;
        const T* values = (const T*)pass_.values[op_.layer] + offset;
        for (int64_t at = part * PART; at < (part + 1) * PART; at += TILE) {
            tiles_.clear();
            for (int64_t r = first_row_; r < end_row_; r++) {
                const Sight& seen = sights_[r - first_row_];
                const int low = int(seen.first > at ? seen.first - at : 0);
                const int high = int(seen.end - at < TILE ? seen.end - at : TILE);
                if (low >= high) continue;
                tiles_.fill(seen, at, low, high, keys, values);
                heads(r, low, high, place);
            }
        }
    }

   private:
    template <class Place>
    void heads(int64_t row, int low, int high, Place place) {
        constexpr int64_t MOST = 4;
        const float* queries = queries_ + row * stride_;
        for (int64_t g = 0; g < groups_; g += MOST) {
            Vec found[MOST][TILE_VECTORS];
            const int64_t n = groups_ - g < MOST ? groups_ - g : MOST;
            const auto score = n == 1 ? scores<1> : n == 2 ? scores<2> : n == 3 ? scores<3> : scores<4>;
            score(queries + g * dim_, tiles_.keys, dim_, found);
            for (int64_t i = 0; i < n; i++)
                gather(found[i], low, high, op_.value, op_.cap, tiles_.values, dim_,
                       place(row, g + i));
        }
    }

    const Pass& pass_;
    const Operation& op_;
    const int64_t dim_, groups_, kv_head_, first_row_, end_row_;
    const float* queries_;
    const int64_t stride_;
    Tiles16<T> tiles_;
    Sight sights_[ROWS_AT_ONCE];
};

}  // namespace flat
