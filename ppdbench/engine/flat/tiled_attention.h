// Attention by matrix tiles, of bfloat16: 32 places of a list for up to 32 heads at once.
//
// What attention.h says of lists holds here, too: they are taken 32 places at a time from the first
// on, whatever rows there are, and what a row does not see of those weighs nothing. A weight is the
// sum of two bfloat16 numbers, as good as float32 to what is rounded to bfloat16 in the end.
#pragma once

#include <initializer_list>

#include "attention.h"
#include "side_by_side.h"

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

// Some rows over parts of their lists, as `Unit`. Not inlined into each other, so that the library is
// built sooner.
template <class Tiles>
class TiledUnit : public SomeRows {
   public:
    TiledUnit(const Pass& pass, const Operation& op, int64_t kv_head, int64_t first_row,
              int64_t end_row, const Bfloat16* queries, int64_t stride, float* room)
        : SomeRows(pass, op, kv_head, first_row, end_row), capacity_(pass.capacity),
          room_(op, heads_, room) {
        memset(room_.nought, 0, room_.widest * sizeof(Bfloat16));
        lay_queries(queries + first_head_ * op.head_dim, stride);
    }
    static int64_t room_floats(const Operation& op, int64_t heads) {
        return TileRoom(op, heads, nullptr).floats;
    }

    // `next` says whether the part behind is the one that comes next.
    template <class Place>
    void run(int64_t part, bool next, Place place) {
        const int64_t begin = part * PART;
        by_places(begin, [&](const SharedPlaces& shared) { score(shared, begin); });
        turn_scores(begin);
        Coming coming;
        expect<Bfloat16>(coming, rows_.values, begin);
        if (next) expect<Bfloat16>(coming, rows_.keys, begin + PART);
        weigh_all(room_.scores, begin, coming, place,
                  [&](int64_t head, const Scores& scores, Gathered gathered) {
                      weigh_split(scores, head, gathered);
                  });
        memset(room_.sums, 0, heads_ * room_.wide * sizeof(float));
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
        int64_t wide, widest, pitch, floats = 0;
        float *found, *scores, *sums;  // scores as tiles find them, [PART, pitch], and [heads, PART]
        uint32_t* queries;
        Bfloat16 *keys, *values, *near, *rest, *nought;

        TileRoom(const Operation& op, int64_t heads, float* at) {
            const int64_t first = first_keys(op);
            const int64_t deep = whole_tiles(first) + whole_tiles(op.head_dim - first);
            pitch = whole(heads);
            wide = whole_tiles(op.value_dim), widest = deep > wide ? deep : wide;
            scores = take(at, heads * PART), sums = take(at, pitch * wide);
            queries = (uint32_t*)take(at, pitch * deep / 2), keys = halves(at, TILE_DEEP * deep);
            found = take(at, PART * (wide / 2 > pitch ? wide / 2 : pitch));
            values = (Bfloat16*)found, nought = halves(at, widest);
            near = halves(at, pitch * PART), rest = halves(at, pitch * PART);
        }
        // Keys of latents are of two parts, each filled up to whole tiles.
        static int64_t first_keys(const Operation& op) {
            return op.flags & LATENTS ? op.head_dim - op.value_dim : op.head_dim;
        }
        float* take(float* at, int64_t n) {
            float* here = at ? at + floats : nullptr;
            floats += whole(n);
            return here;
        }
        static int64_t whole(int64_t n) { return (n + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS; }
        Bfloat16* halves(float* at, int64_t n) { return (Bfloat16*)take(at, n / 2); }
    };

    // Calls `each` for 32 places of a part after another: once for rows that share them.
    template <class Each>
    void by_places(int64_t begin, Each each) {
        for (int64_t at = begin; at < begin + PART; at += TILE_DEEP) {
            SharedPlaces shared;
            for (int64_t r = first_row_; r < end_row_; r++) {
                const Sight& seen = sight_of(r);
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

    // Scores: keys are rows of a tile as they lie in the cache, queries columns of another

    __attribute__((noinline)) void lay_queries(const Bfloat16* queries, int64_t stride) {
        auto lay = [&](int64_t from, int64_t dim, uint32_t* to) {
            for (int64_t h = 0; h < heads_; h += TILE_ROWS)
                for (int64_t d = 0; d < dim; d += TILE_DEEP) {
                    auto query = [&](int64_t i) {
                        const int64_t row = first_row_ + (h + i) / groups_, group = (h + i) % groups_;
                        return queries + row * stride + group * op_.head_dim + from + d;
                    };
                    const int64_t count = heads_ - h < TILE_ROWS ? heads_ - h : TILE_ROWS;
                    lay_pairs(query, count, dim - d, to + d / 2 * room_.pitch + h, room_.pitch);
                }
        };
        const int64_t first = TileRoom::first_keys(op_);
        lay(0, first, room_.queries);
        lay(first, op_.head_dim - first, room_.queries + whole_tiles(first) / 2 * room_.pitch);
    }
    // The keys of 32 places, `deep` numbers each. Those of places that no row sees may be anything.
    struct Keys {
        const Bfloat16* rows = nullptr;
        int64_t stride = 0, deep = 0;
    };
    // Scores of 32 keys for the heads of some rows.
    __attribute__((noinline)) void score(const SharedPlaces& shared, int64_t begin) {
        const Keys keys = keys_of(shared, rows_.keys, room_.keys);
        const Keys more = keys_of(shared, rows_.more_keys, room_.keys + keys.deep * TILE_DEEP);
        const int64_t end = head_of(shared.end_row);
        for (int64_t h = head_of(shared.first_row); h < end; h += 2 * TILE_ROWS) {
            float* found = room_.found + (shared.at - begin) * room_.pitch + h;
            const bool two = end - h > TILE_ROWS;
            // Heads of later rows come later: what is found for them here makes no difference.
            const bool is_room = h + (two ? 2 : 1) * TILE_ROWS <= room_.pitch;
            const int64_t rest = end - h < 2 * TILE_ROWS ? end - h : 2 * TILE_ROWS;
            tiles_.shape(int(is_room ? 2 * TILE_ROWS : rest), BY_OUTPUTS);
            two ? score_some<true>(keys, more, h, found) : score_some<false>(keys, more, h, found);
        }
    }
    template <bool two>
    void score_some(const Keys& keys, const Keys& more, int64_t head, float* scores) {
        SumsByOutputs<two, Tiles> found(tiles_, room_.pitch);
        const uint32_t* queries = room_.queries + head;
        for (const Keys& part : {keys, more})
            for (int64_t d = 0; d < part.deep; d += TILE_DEEP, queries += TILE_DEEP / 2 * room_.pitch)
                found.multiply(part.rows + d, part.stride, queries, queries + TILE_ROWS);
        found.store_by_outputs(scores, room_.pitch);
    }
    // Lays the scores of each head side by side, once there are all of a part: tiles need not be waited
    // for at every step.
    void turn_scores(int64_t begin) {
        int64_t first = PART, end = 0;
        by_seeing_rows(begin, [&](int64_t, int64_t low, int64_t high) {
            first = low < first ? low : first, end = high > end ? high : end;
        });
        for (int64_t i = first / TILE_ROWS * TILE_ROWS; i < end; i += TILE_ROWS)
            put_columns(room_.found + i * room_.pitch, room_.pitch, heads_, TILE_ROWS,
                        room_.scores + i, PART);
    }
    // Where they lie or, if not one behind another or not in whole tiles, in a room that they are copied to.
    Keys keys_of(const SharedPlaces& shared, const Rows& part, Bfloat16* room) const {
        const int64_t deep = whole_tiles(part.dim);
        if (!deep) return {};
        if (shared.in_order && part.dim == deep && shared.at + TILE_DEEP <= capacity_)
            return {part.of<Bfloat16>(shared.cache) + shared.at * part.stride, part.stride, deep};
        const PlacedRows from(shared, part, shared.low, shared.high, room_.nought);
        for (int j = 0; j < TILE_DEEP; j++)
            for (int64_t d = 0; d < deep; d += 2 * LANES)
                store((float*)(room + j * deep + d), numbers(from[j], d, part.dim));
        return {room, deep, deep};
    }
    // Calls `each(head)` for up to 16 heads of some rows after another, with tiles in shape: for 16 where
    // what lies behind belongs to no head.
    template <class Each>
    void by_heads(int64_t first_row, int64_t end_row, Each each) {
        const int64_t end = head_of(end_row);
        for (int64_t h = head_of(first_row); h < end; h += TILE_ROWS) {
            const int64_t rest = end - h < TILE_ROWS ? end - h : TILE_ROWS;
            const bool is_room = end == heads_ && h + TILE_ROWS <= room_.pitch;
            tiles_.shape(int(is_room ? TILE_ROWS : rest), BY_ROWS);
            each(h);
        }
    }
    // The rows of 32 places, of noughts outside [low, high).
    class PlacedRows {
       public:
        PlacedRows(const SharedPlaces& shared, const Rows& part, int64_t low, int64_t high,
                   const Bfloat16* nought)
            : shared_(shared), all_(part.of<Bfloat16>(shared.cache)), nought_(nought),
              stride_(part.stride), low_(low), high_(high) {}
        const Bfloat16* operator[](int j) const {
            if (j < low_ || j >= high_) return nought_;
            const int64_t slot = shared_.slot(j);
            return slot == SharedPlaces::NONE ? nought_ : all_ + slot * stride_;
        }

       private:
        const SharedPlaces& shared_;
        const Bfloat16 *all_, *nought_;
        const int64_t stride_, low_, high_;
    };
    // Numbers of a row from `d` on, as they lie in memory; nought behind the last.
    static Vec numbers(const Bfloat16* row, int64_t d, int64_t dim) {
        if (d + 2 * LANES <= dim) return load((const float*)(row + d));
        Bfloat16 some[2 * LANES] = {};
        if (d < dim) memcpy(some, row + d, (dim - d) * sizeof(Bfloat16));
        return load((const float*)some);
    }

    // Weights of a head, as two bfloat16 numbers each; nought where it sees nothing.
    __attribute__((noinline)) void weigh_split(const Scores& scores, int64_t head,
                                               Gathered gathered) {
        Bfloat16 *near = room_.near + head * PART, *rest = room_.rest + head * PART;
        memset(near, 0, PART * sizeof(Bfloat16)), memset(rest, 0, PART * sizeof(Bfloat16));
        weigh(scores, gathered, [&](int64_t at, Vec w) {
            store(rest + at, w - store(near + at, w));
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
            const auto [low, high] = sight_of(r).of(shared.at, TILE_DEEP);
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
        const PlacedRows values(shared, rows_.values, shared.low, shared.high, room_.nought);
        for (int j = shared.low; j < shared.high; j++)
            for (int64_t d = 0; d < op_.value_dim; d += LANES)
                wrong |= (as_ints(load_some(values[j] + d, op_.value_dim - d)) & LARGEST) == LARGEST;
        return !any(wrong);
    }
    // Pairs of values, one below another, in blocks of 32 columns.
    __attribute__((noinline)) void lay_values(const SharedPlaces& shared, int64_t low, int64_t high) {
        constexpr int64_t EACH = 2 * LANES, NEXT_BLOCK = MOST_LAID * BLOCK_NUMBERS / 2;
        const int64_t dim = op_.value_dim, whole = dim / EACH * EACH;
        const PlacedRows values(shared, rows_.values, low, high, room_.nought);
        float* to = (float*)laid_values(0, laid_++);
        for (int j = 0; j < TILE_DEEP; j += 2, to += BLOCK) {
            const Bfloat16 *first = values[j], *second = values[j + 1];
            auto put = [&](int64_t d, Vec one, Vec two) {
                const InTurn mixed = in_turn(one, two);
                float* block = to + d / BLOCK * NEXT_BLOCK + d % BLOCK;
                store(block, mixed.low), store(block + LANES, mixed.high);
            };
            for (int64_t d = 0; d < whole; d += EACH)
                put(d, load((const float*)(first + d)), load((const float*)(second + d)));
            if (whole < dim) put(whole, numbers(first, whole, dim), numbers(second, whole, dim));
        }
    }
    Bfloat16* laid_values(int64_t block, int64_t i) const {
        return room_.values + (block * MOST_LAID + i) * BLOCK_NUMBERS;
    }
    void add_laid() {
        if (laid_)
            by_heads(laid_first_, laid_end_, [&](int64_t h) {
                int64_t d = 0;
                for (; d + 2 * BLOCK <= room_.wide; d += 2 * BLOCK) add_columns<true>(h, d);
                if (d < room_.wide) add_columns<false>(h, d);
            });
        laid_ = 0;
    }
    // 32 columns, or 64 where there are `two` blocks, onto the sums of some heads.
    template <bool two>
    __attribute__((noinline)) void add_columns(int64_t head, int64_t d) {
        SumTiles<Tiles, two> sums(tiles_, room_.sums + head * room_.wide + d, room_.wide);
        sums.load();
        for (int64_t i = 0; i < laid_; i++) {
            const int64_t at = head * PART + laid_place_ + i * TILE_DEEP;
            for (const Bfloat16* weights : {room_.near, room_.rest})
                sums.add(weights + at, PART, laid_values(d / BLOCK, i), laid_values(d / BLOCK + 1, i));
        }
        sums.store();
    }

    const int64_t capacity_;
    const TileRoom room_;
    Tiles tiles_;
    // Values that are laid out: of so many times 32 places, from one on, for the heads of some rows.
    int64_t laid_ = 0, laid_place_ = 0, laid_first_ = 0, laid_end_ = 0;
};

}  // namespace flat
