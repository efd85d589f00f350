// Attention by matrix tiles, of bfloat16: 32 places of a list for up to 16 heads at once.
//
// What attention.h says of lists holds here, too: they are taken 32 places at a time from the first
// on, whatever rows there are, and what a row does not see of those weighs nothing. A weight is the
// sum of two bfloat16 numbers, as good as float32 to what is rounded to bfloat16 in the end.
#pragma once

#include "attention.h"
#include "rows.h"
#include "tiles.h"

namespace flat {

// 32 places of lists from `at` on, in slots that some rows share. A row sees its own part of them.
struct SharedPlaces {
    static constexpr int64_t NONE = -1;  // the slot of a place that no row sees

    int64_t at = 0, cache = 0;
    int64_t first_row = 0, end_row = 0;
    int low = 0, high = 0;  // what any row sees
    bool uneven = false;    // some row does not see all of that
    bool in_order = false;  // slots are numbered as places are
    int64_t slots[TILE_DEEP];

    void begin(const Sight& seen, int64_t from, int first, int end, int64_t row) {
        at = from, cache = seen.cache, low = first, high = end;
        first_row = row, end_row = row + 1;
        uneven = false, in_order = at + high <= seen.before;
        if (!in_order) list([&](int j) { return seen.slot(at + j); });
    }
    // Takes the next row in; false where it has other slots in these places.
    bool join(const Sight& seen, int first, int end, int64_t row) {
        if (cache != seen.cache) return false;
        if (!in_order || at + end > seen.before) {
            if (in_order) list([&](int j) { return at + j; });
            in_order = false;
            for (int j = first; j < end; j++)
                if (slots[j] != NONE && slots[j] != seen.slot(at + j)) return false;
            for (int j = first; j < end; j++) slots[j] = seen.slot(at + j);
        }
        uneven = uneven || first != low || end != high || row != end_row;
        low = first < low ? first : low, high = end > high ? end : high;
        end_row = row + 1;
        return true;
    }
    int64_t slot(int j) const { return in_order ? at + j : slots[j]; }

   private:
    template <class SlotOf>
    void list(SlotOf slot_of) {
        for (int j = 0; j < TILE_DEEP; j++) slots[j] = low <= j && j < high ? slot_of(j) : NONE;
    }
};

// Some rows of a pass, all query heads of one KV head, over parts of their lists: see `Unit`. Not
// inlined into each other, so that the library is built sooner.
template <class Tiles>
class TiledUnit {
   public:
    TiledUnit(const Pass& pass, const Operation& op, int64_t kv_head, int64_t first_row,
              int64_t end_row, const float* queries, int64_t stride, float* room)
        : op_(op), room_(op, (end_row - first_row) * (op.heads / op.kv_heads), room),
          groups_(op.heads / op.kv_heads), first_head_(kv_head * groups_), first_row_(first_row),
          end_row_(end_row), rows_(keys_and_values(pass, op, kv_head)) {
        for (int64_t r = first_row; r < end_row; r++)
            sights_[r - first_row] = sight(pass, r, op.layer, op.window);
        memset(room_.nought, 0, room_.widest * sizeof(Bfloat16));
        lay_queries(queries + first_head_ * op.head_dim, stride);
    }
    static int64_t room_floats(const Operation& op, int64_t heads) {
        return TileRoom(op, heads, nullptr).floats;
    }

    template <class Place>
    void run(int64_t part, Place place) {
        const int64_t begin = part * PART;
        by_places(begin, [&](const SharedPlaces& shared) { score(shared, begin); });
        by_seeing_rows(begin, [&](int64_t r, int64_t low, int64_t high) {
            const Tilts tilts(op_, sights_[r - first_row_], begin, low, high);
            for (int64_t g = 0; g < groups_; g++)
                weigh_split(head_of(r) + g, low, high, tilts.of(first_head_ + g), place(r, g));
        });
        memset(room_.sums, 0, head_of(end_row_) * room_.wide * sizeof(float));
        by_places(begin, [&](const SharedPlaces& shared) { gather(shared, begin); });
        add_laid();
        by_seeing_rows(begin, [&](int64_t r, int64_t, int64_t) {
            for (int64_t g = 0; g < groups_; g++)
                copy(room_.sums + (head_of(r) + g) * room_.wide, place(r, g).values, op_.value_dim);
        });
    }

   private:
    static constexpr int64_t MOST_LAID = PART / TILE_DEEP;       // times 32 places
    static constexpr int64_t BLOCK_NUMBERS = TILE_DEEP * BLOCK;  // of 32 columns, 32 deep

    // What a thread works in.
    struct TileRoom {
        int64_t deep, wide, widest, floats = 0;
        float *scores, *sums;
        Bfloat16 *queries, *keys, *values, *near, *rest, *nought;

        TileRoom(const Operation& op, int64_t heads, float* at) {
            deep = whole_tiles(first_keys(op)) + whole_tiles(op.head_dim - first_keys(op));
            wide = whole_tiles(op.value_dim), widest = deep > wide ? deep : wide;
            scores = take(at, heads * PART), sums = take(at, heads * wide);
            queries = halves(at, heads * deep), keys = halves(at, BLOCK * deep);
            values = halves(at, PART * wide), nought = halves(at, widest);
            near = halves(at, heads * PART), rest = halves(at, heads * PART);
        }
        // Keys of latents are of two parts, each filled up to whole tiles.
        static int64_t first_keys(const Operation& op) {
            return op.flags & LATENTS ? op.head_dim - op.value_dim : op.head_dim;
        }
        float* take(float* at, int64_t n) {
            float* here = at ? at + floats : nullptr;
            floats += (n + TILE - 1) / TILE * TILE;
            return here;
        }
        Bfloat16* halves(float* at, int64_t n) { return (Bfloat16*)take(at, n / 2); }
    };

    int64_t head_of(int64_t row) const { return (row - first_row_) * groups_; }

    template <class Each>  // each(row, low, high): what it sees of the part
    void by_seeing_rows(int64_t begin, Each each) const {
        for (int64_t r = first_row_; r < end_row_; r++) {
            const auto [low, high] = sights_[r - first_row_].of(begin, PART);
            if (low < high) each(r, low, high);
        }
    }
    // Calls `each` for 32 places of a part after another: once for rows that share them.
    template <class Each>
    void by_places(int64_t begin, Each each) {
        for (int64_t at = begin; at < begin + PART; at += TILE_DEEP) {
            SharedPlaces shared;
            for (int64_t r = first_row_; r < end_row_; r++) {
                const Sight& seen = sights_[r - first_row_];
                const auto [from, to] = seen.of(at, TILE_DEEP);
                const int low = int(from), high = int(to);
                if (low >= high) continue;
                const bool is_first = shared.end_row == 0;
                if (!is_first && shared.join(seen, low, high, r)) continue;
                if (!is_first) each(shared);
                shared.begin(seen, at, low, high, r);
            }
            if (shared.end_row) each(shared);
        }
    }

    // Products of heads with a block of 32 columns

    __attribute__((noinline)) void lay_queries(const float* queries, int64_t stride) {
        const int64_t first = TileRoom::first_keys(op_), second = op_.head_dim - first;
        Bfloat16* to = room_.queries;
        for (int64_t r = first_row_; r < end_row_; r++)
            for (int64_t g = 0; g < groups_; g++, to += room_.deep) {
                const float* query = queries + r * stride + g * op_.head_dim;
                narrowed(query, to, first, whole_tiles(first));
                narrowed(query + first, to + whole_tiles(first), second, whole_tiles(second));
            }
    }
    // Scores of 32 keys for the heads of some rows.
    __attribute__((noinline)) void score(const SharedPlaces& shared, int64_t begin) {
        lay_keys(shared, rows_.keys, room_.keys);
        lay_keys(shared, rows_.more_keys, room_.keys + whole_tiles(rows_.keys.dim) * BLOCK);
        by_heads(shared.first_row, shared.end_row, [&](int64_t h) {
            tiles_over(tiles_, room_.keys, room_.deep, room_.queries + h * room_.deep, room_.deep,
                       room_.scores + h * PART + shared.at - begin, PART, TilesAhead::none());
        });
    }
    // Calls `each(head)` for up to 16 heads of some rows after another: see `by_tiles`.
    template <class Each>
    void by_heads(int64_t first_row, int64_t end_row, Each each) {
        const int64_t first = head_of(first_row);
        by_tiles(tiles_, head_of(end_row) - first, TILE_ROWS, BY_ROWS,
                 [&](int64_t i, int64_t) { each(first + i); });
    }
    // Keys as columns: pairs of numbers, one below another, of 32 keys side by side.
    __attribute__((noinline)) void lay_keys(const SharedPlaces& shared, const Rows& part,
                                            Bfloat16* to) const {
        constexpr int64_t EACH = 2 * LANES;  // numbers that a vector has room for
        if (!part.dim) return;
        for (int64_t j = 0; j < BLOCK; j += LANES) {
            const Bfloat16* rows[LANES];
            for (int i = 0; i < LANES; i++) rows[i] = row(shared, part, j + i, shared.low, shared.high);
            for (int64_t d = 0; d < whole_tiles(part.dim); d += EACH) {
                Vec square[LANES];
                for (int i = 0; i < LANES; i++) square[i] = numbers(rows[i], d, part.dim);
                transpose(square);
                for (int i = 0; i < LANES; i++)
                    store((float*)to + (d / 2 + i) * BLOCK + j, square[i]);
            }
        }
    }
    // The row of a place, of noughts outside [low, high).
    const Bfloat16* row(const SharedPlaces& shared, const Rows& part, int64_t place, int64_t low,
                        int64_t high) const {
        if (place < low || place >= high) return room_.nought;
        const int64_t slot = shared.slot(int(place));
        if (slot == SharedPlaces::NONE) return room_.nought;
        return part.of<Bfloat16>(shared.cache) + slot * part.stride;
    }
    // Numbers of a row from `d` on, as they lie in memory; nought behind the last.
    static Vec numbers(const Bfloat16* row, int64_t d, int64_t dim) {
        if (d + 2 * LANES <= dim) return load((const float*)(row + d));
        Bfloat16 some[2 * LANES] = {};
        if (d < dim) memcpy(some, row + d, (dim - d) * sizeof(Bfloat16));
        return load((const float*)some);
    }

    // Weights of a head, as two bfloat16 numbers each; nought outside [low, high).
    __attribute__((noinline)) void weigh_split(int64_t head, int64_t low, int64_t high, Tilt tilt,
                                               Gathered gathered) {
        Bfloat16 *near = room_.near + head * PART, *rest = room_.rest + head * PART;
        memset(near, 0, PART * sizeof(Bfloat16)), memset(rest, 0, PART * sizeof(Bfloat16));
        weigh(room_.scores + head * PART, low, high, op_.value, op_.cap, tilt, gathered,
              [&](int64_t at, Vec w) {
                  const Vec held = rounded(w);
                  store(near + at, held), store(rest + at, rounded(w - held));
              });
    }
    // Values of 32 places, weighted, onto the sums of the heads of some rows: as soon as there are
    // no more for the same rows.
    __attribute__((noinline)) void gather(const SharedPlaces& shared, int64_t begin) {
        const int64_t place = shared.at - begin;
        const bool goes_on = shared.first_row == laid_first_ && shared.end_row == laid_end_ &&
                             place == laid_place_ + laid_ * TILE_DEEP;
        if (!goes_on) begin_laying(place, shared.first_row, shared.end_row);
        if (!shared.uneven || are_numbers(shared)) return lay_values(shared, shared.low, shared.high);
        // Nought times what is no number is none: each row for itself, with what it sees.
        for (int64_t r = shared.first_row; r < shared.end_row; r++) {
            const auto [low, high] = sights_[r - first_row_].of(shared.at, TILE_DEEP);
            begin_laying(place, r, r + 1);
            lay_values(shared, low, high);
        }
    }
    void begin_laying(int64_t place, int64_t first_row, int64_t end_row) {
        add_laid();
        laid_place_ = place, laid_first_ = first_row, laid_end_ = end_row;
    }
    bool are_numbers(const SharedPlaces& shared) const {
        constexpr int32_t LARGEST = 0x7f800000;
        Ints wrong{};
        for (int64_t j = shared.low; j < shared.high; j++) {
            const Bfloat16* values = row(shared, rows_.values, j, shared.low, shared.high);
            for (int64_t d = 0; d < op_.value_dim; d += LANES)
                wrong |= (as_ints(load_some(values + d, op_.value_dim - d)) & LARGEST) == LARGEST;
        }
        return !any(wrong);
    }
    // Pairs of values, one below another, in blocks of 32 columns.
    __attribute__((noinline)) void lay_values(const SharedPlaces& shared, int64_t low, int64_t high) {
        const int64_t dim = op_.value_dim;
        float* to = (float*)laid_values(0, laid_++);
        for (int64_t j = 0; j < TILE_DEEP; j += 2, to += BLOCK) {
            const Bfloat16* first = row(shared, rows_.values, j, low, high);
            const Bfloat16* second = row(shared, rows_.values, j + 1, low, high);
            for (int64_t d = 0; d < dim; d += LANES) {
                const Ints one = as_ints(load_some(first + d, dim - d));
                const Ints two = as_ints(load_some(second + d, dim - d));
                float* block = to + d / BLOCK * MOST_LAID * BLOCK_NUMBERS / 2;
                store(block + d % BLOCK, as_floats(two | (one >> 16 & 0xffff)));
            }
        }
    }
    Bfloat16* laid_values(int64_t block, int64_t i) const {
        return room_.values + (block * MOST_LAID + i) * BLOCK_NUMBERS;
    }
    void add_laid() {
        if (laid_)
            by_heads(laid_first_, laid_end_, [&](int64_t h) {
                for (int64_t d = 0; d < room_.wide; d += BLOCK) add_columns(h, d);
            });
        laid_ = 0;
    }
    // 32 columns onto the sums of some heads.
    __attribute__((noinline)) void add_columns(int64_t head, int64_t d) {
        SumTiles<Tiles> sums(tiles_, room_.sums + head * room_.wide + d, room_.wide);
        sums.load();
        for (int64_t i = 0; i < laid_; i++) {
            const int64_t at = head * PART + laid_place_ + i * TILE_DEEP;
            sums.add(room_.near + at, PART, laid_values(d / BLOCK, i));
            sums.add(room_.rest + at, PART, laid_values(d / BLOCK, i));
        }
        sums.store();
    }

    const Operation& op_;
    const TileRoom room_;
    const int64_t groups_, first_head_, first_row_, end_row_;
    const KeysAndValues rows_;
    Sight sights_[ROWS_AT_ONCE];
    Tiles tiles_;
    // Values that are laid out: of so many times 32 places, from one on, for the heads of some rows.
    int64_t laid_ = 0, laid_place_ = 0, laid_first_ = 0, laid_end_ = 0;
};

}  // namespace flat
