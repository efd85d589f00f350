// Attention of a row over a list of keys: slots of its cache in the order of positions.
//
// A list is cut into parts of 128 keys: each is scored, weighed and gathered key after key, then
// the parts are joined in turn. Where a key stands in the list is all
// that matters: not its slot, not the rows of the pass, not whose they are, not the threads. So a branch of a tree
// gives what a chain of the same tokens does.
#pragma once

#include <cmath>

#include "coming.h"
#include "linear.h"
#include "operations.h"
#include "rows.h"

namespace flat {

constexpr int64_t PART = 128;         // keys of one unit of work
constexpr int64_t TILES_AHEAD = 4;    // so long before they are scored keys are asked for
constexpr int64_t ROWS_AT_ONCE = 48;  // that share keys, each head of a row counted

// Queries that are scored together, heads that gather together, and vectors of values that they gather: no
// more sums than registers hold.
constexpr int MOST_HEADS = 6, MOST_ASKED = REGISTERS > 16 ? 8 : 6, WIDE = REGISTERS > 16 ? 4 : 2;

// The list of one row.
struct Sight {
    int64_t cache;          // that its slots are of, and the layer
    int64_t before;         // slots from the first on, each of the position that it is numbered by
    const int32_t* own;     // slots behind those
    const int32_t* places;  // and their positions
    int64_t first, end;     // what a window leaves of the list

    int64_t slot(int64_t i) const { return i < before ? i : own[i - before]; }
    int64_t position(int64_t i) const { return i < before ? i : places[i - before]; }

    // What the row sees of some places: nothing where `low` is no less than `high`.
    struct Seen {
        int64_t low, high;
    };
    Seen of(int64_t at, int64_t n) const {
        return {first > at ? first - at : 0, end - at < n ? end - at : n};
    }
    // The parts that it sees something of.
    int64_t first_part() const { return first / PART; }
    int64_t end_part() const { return (end + PART - 1) / PART; }
};

inline Sight sight(const Pass& pass, int64_t row, int32_t layer, int64_t window) {
    Sight found{};
    found.cache = pass.held(row, layer);
    int64_t count = 0;
    if (pass.causal) {
        found.before = pass.start + row + 1;
    } else {
        found.before = pass.reach ? pass.reach[row] : pass.start;
        found.own = pass.seen + pass.offsets[row];
        found.places = pass.places + pass.offsets[row];
        count = pass.offsets[row + 1] - pass.offsets[row];
    }
    found.end = found.before + count;
    if (window > 0) {
        const int64_t position = pass.causal ? pass.start + row : pass.positions[row];
        const int64_t oldest = position - window + 1;
        if (oldest > 0) found.first = oldest < found.before ? oldest : found.before;
        if (found.first == found.before)
            while (found.first < found.end && found.position(found.first) < oldest) found.first++;
    }
    return found;
}

// Rows that one head of each cache and layer holds.
struct Rows {
    void* const* caches;
    int64_t first;   // number of each cache, where the rows begin
    int64_t stride;  // from row to row
    int64_t dim;     // numbers of a row

    template <class T>
    const T* of(int64_t cache) const {
        return (const T*)caches[cache] + first;
    }
};

// The keys and values of a head. Keys are of one part or of two, one behind the other.
struct KeysAndValues {
    Rows keys, more_keys, values;
};

inline KeysAndValues keys_and_values(const Pass& pass, const Operation& op, int64_t kv_head) {
    const int64_t width = pass.widths[op.layer];
    if (op.flags & LATENTS) {
        const Rows latents{pass.keys, 0, width, op.value_dim};
        return {{pass.values, 0, width, op.head_dim - op.value_dim}, latents, latents};
    }
    const int64_t value_head =
        op.value_heads ? op.first_value + kv_head % op.value_heads : kv_head;
    const Rows keys{pass.keys, kv_head * pass.capacity * width, width, op.head_dim};
    const Rows values{pass.values, value_head * pass.capacity * width, width, op.value_dim};
    return {keys, {}, values};
}

// What queries and keys of T are multiplied as: numbers, widened; or pairs of bfloat16 as they are.
template <class T>
struct Numbers {
    using Held = T;
    using Of = OfFloats;
    static constexpr int64_t EACH = 1;
};
struct Paired {
    using Held = Bfloat16;
    using Of = OfPairsAtOnce;
    static constexpr int64_t EACH = 2;
};

// Keys of 16 places of a list, [head_dim][16]: numbers, or pairs of them.
template <class As>
class KeyTile {
   public:
    using T = typename As::Held;
    using Word = typename As::Of::Row;

    KeyTile(float* keys, const Rows& one, const Rows& two) : keys_((Word*)keys), one_(one), two_(two) {}
    // Each part of the keys is filled up to whole vectors.
    static int64_t floats(int64_t dim) { return (dim / LANES + 2) * LANES * TILE; }
    const Word* keys() const { return keys_; }

    void clear() {
        for (auto& slot : held_) slot = NONE;
        in_order_ = false;
    }
    // True if the places [low, high) of what begins at `at` of a list hold its keys.
    bool holds(const Sight& seen, int64_t at, int low, int high) const {
        if (cache_ != seen.cache) return false;
        if (in_order_ && at + high <= seen.before) return true;
        for (int j = low; j < high; j++)
            if (held_[j] != seen.slot(at + j)) return false;
        return true;
    }
    void fill(const Sight& seen, int64_t at, int low, int high) {
        cache_ = seen.cache;
        for (int j = low; j < high; j++) held_[j] = seen.slot(at + j);
        in_order_ = low == 0 && high == TILE && at + TILE <= seen.before;
        const int64_t any = seen.slot(at + low);
        put(one_, any, keys_);
        put(two_, any, keys_ + one_.dim / As::EACH * TILE);  // over what fills up the first part
        if (!in_order_) return;
        const int64_t next = at + TILES_AHEAD * TILE;
        ask_for(one_, next), ask_for(two_, next);
    }

   private:
    static constexpr int64_t NONE = -1;

    // Asks memory for the keys of some places, which come while those before them are scored.
    void ask_for(const Rows& part, int64_t slot) const {
        if (!part.dim) return;
        const T* from = part.of<T>(cache_) + slot * part.stride;
        for (int64_t i = 0; i < TILE * part.stride; i += LINE / int64_t(sizeof(T)))
            __builtin_prefetch(from + i, 0, 2);
        // A function that only asks has no effect that compilers know, and they would leave out its calls.
        asm volatile("");
    }

    // The numbers of one part; `any` slot stands for those that nobody asks for.
    void put(const Rows& part, int64_t any, Word* keys) const {
        const T* rows = part.dim ? part.of<T>(cache_) : nullptr;
        const T* of[TILE];
        for (int j = 0; j < TILE; j++) of[j] = rows + (held_[j] == NONE ? any : held_[j]) * part.stride;
        int64_t d = 0;
#ifdef FLAT_FOUR_COLUMNS
        constexpr int64_t AT_ONCE = 4 * sizeof(float) / sizeof(T);
        for (; d + AT_ONCE <= part.dim; d += AT_ONCE)
            for (int first = 0; first < TILE; first += LANES) {
                Vec columns[4];
                four_columns([&](int j) { return (const float*)(of[first + j] + d); }, columns);
                for (int i = 0; i < 4; i++)
                    put_words(columns[i], (float*)keys + d / As::EACH * TILE + first, i);
            }
#endif
        if constexpr (As::EACH > 1) {
            for (; d < part.dim; d += As::EACH)
                for (int j = 0; j < TILE; j++) memcpy(keys + d / As::EACH * TILE + j, of[j] + d, sizeof(Word));
        } else {
            for (; d < part.dim; d += LANES)
                for (int first = 0; first < TILE; first += LANES) {
                    Vec square[LANES];
                    for (int j = 0; j < LANES; j++)
                        square[j] = load_some(of[first + j] + d, part.dim - d);
                    transpose(square);
                    for (int i = 0; i < LANES; i++) store(keys + (d + i) * TILE + first, square[i]);
                }
        }
    }

    // Words of rows, of which each is a number, or two of bfloat16: half as many change places as would
    // widened.
    static void put_words(Vec words, float* keys, int64_t i) {
        if constexpr (IS_NARROW<T> && As::EACH == 1) {
            store(keys + 2 * i * TILE, of_pairs<0>(as_ints(words)));
            store(keys + (2 * i + 1) * TILE, of_pairs<1>(as_ints(words)));
        } else {
            store(keys + i * TILE, words);
        }
    }

    Word* keys_;
    const Rows one_, two_;
    int64_t cache_ = NONE;
    int64_t held_[TILE] = {};
    bool in_order_ = false;  // all slots, one after another
};

// What a row's head has gathered: the weighted values, the largest score, the sum of weights.
struct Gathered {
    float *values, &peak, &total;

    Gathered(float* at, int64_t dim) : values(at), peak(at[dim]), total(at[dim + 1]) {}
    static int64_t floats(int64_t dim) { return (dim + 2 + TILE - 1) / TILE * TILE; }
};

// A query, and where its scores go.
template <class As>
struct Asked {
    const typename As::Of::Row* query;
    float* scores;
};

// Scores of 16 keys of so many words; even and odd ones of a head are summed apart.
template <class As, int n>
void score(const Asked<As>* asked, const typename As::Of::Row* keys, int64_t words) {
    using Of = typename As::Of;
    auto key = [&](int64_t d, int j) {
        return Of::template weights<0>((const typename Of::Weight*)keys + d * TILE + j);
    };
    for (int j = 0; j < TILE; j += LANES) {
        Vec even[n], odd[n];
        for (int i = 0; i < n; i++) even[i] = odd[i] = Vec{};
        int64_t d = 0;
        for (; d + 1 < words; d += 2) {
            const auto one = key(d, j), two = key(d + 1, j);
#pragma GCC unroll 8
            for (int i = 0; i < n; i++) {
                even[i] = Of::plus(even[i], Of::again(asked[i].query[d]), one);
                odd[i] = Of::plus(odd[i], Of::again(asked[i].query[d + 1]), two);
            }
        }
        for (int i = 0; i < n; i++) {
            if (d < words) even[i] = Of::plus(even[i], Of::again(asked[i].query[d]), key(d, j));
            store(asked[i].scores + j, even[i] + odd[i]);
        }
    }
}

// What positions add to a head's scores: `slope` for each that a key lies further on.
struct Tilt {
    const float* places;  // of the keys of a part; null: nothing
    float slope;
    bool coarse;  // what it adds is rounded to bfloat16

    Vec of(int64_t i) const { return rounded_if(coarse, load(places + i) * slope); }
};

// The tilts of the heads of a row, over the places [low, high) of a part that begins at `begin`.
class Tilts {
   public:
    Tilts(const Operation& op, const Sight& seen, int64_t begin, int64_t low, int64_t high)
        : op_(op) {
        if (!op.weight) return;
        // From the row itself, where numbers are small; what is rounded, as the model counts.
        const int64_t from = is_coarse() ? 0 : seen.position(seen.end - 1);
        for (int64_t i = 0; i < PART; i++)
            places_[i] = low <= i && i < high ? float(seen.position(begin + i) - from) : 0;
    }
    Tilt of(int64_t head) const {
        if (!op_.weight) return {nullptr, 0, false};
        return {places_, op_.weight[head], is_coarse()};
    }

   private:
    bool is_coarse() const { return op_.flags & COARSE; }

    const Operation& op_;
    float places_[PART];
};

// The scores [low, high) of a part for a head, and what makes exponents of them: all times a scale, tilted
// before, capped behind.
struct Scores {
    float* of;
    int64_t low, high;
    float scale, cap;
    Tilt tilt;

    // Calls `each(i, scores)` for every vector; outside there is nothing larger than minus infinity.
    template <class Each>
    void by_vectors(Each each) const {
        for (int64_t i = low / LANES * LANES; i < high; i += LANES) {
            Vec s = load(of + i);
            if (i < low || i + LANES > high) {
                const Ints place = counted(int32_t(i));
                s = (place >= int32_t(low)) & (place < int32_t(high)) ? s : all(-INFINITY);
            }
            each(i, s);
        }
    }
    // True if they become exponents here and now, before `peak`; others only grow by a factor.
    bool bends() const { return tilt.places || cap > 0 || scale <= 0; }
    float factor() const { return bends() ? 1 : scale; }
    // The largest exponent.
    float peak() const {
        if (bends()) make_exponents();
        Vec most = all(-INFINITY);
        by_vectors([&](int64_t, Vec s) { most = larger(s, most); });
        return largest(most) * factor();
    }

   private:
    void make_exponents() const {
        by_vectors([&](int64_t i, Vec s) {
            if (tilt.places) s = s + tilt.of(i);
            s = s * scale;
            if (cap > 0) s = tanh(s / cap) * cap;
            store(of + i, s);
        });
    }
};

// Makes weights of scores whose peak is known: e^(exponent - the peak). Calls `put(i, weights)` for each
// vector of them, those outside being nought.
template <class Put>
inline void weigh(const Scores& scores, Gathered gathered, Put put) {
    const float factor = scores.factor(), peak = gathered.peak;
    Vec total{};
    scores.by_vectors([&](int64_t i, Vec s) {
        const Vec w = bounded_exp(s * factor - peak);
        put(i, w);
        total = total + w;
    });
    gathered.total = sum(total);
}

// Values of the places [low, high) of a part, weighted: `wide` vectors of `n` heads that share
// them. The last vector may be of fewer than LANES numbers. Put onto what is there, or `afresh`.
template <int n, int wide, class T>
void gather_some(const Sight& seen, int64_t at, int64_t low, int64_t high, const T* rows,
                 int64_t stride, int64_t left, const float* weights, float* const* out, int64_t d,
                 bool afresh) {
    Vec sums[n][wide];
    for (int g = 0; g < n; g++)
        for (int j = 0; j < wide; j++)
            sums[g][j] = afresh ? Vec{} : load_some(out[g] + d + j * LANES, left - j * LANES);
    for (int64_t i = low; i < high; i++) {
        const T* row = rows + seen.slot(at + i) * stride;
        Vec values[wide];
        for (int j = 0; j < wide; j++)
            values[j] = read_once(wide > 1 ? load(row + j * LANES) : load_some(row, left));
#pragma GCC unroll 8
        for (int g = 0; g < n; g++)
#pragma GCC unroll 4
            for (int j = 0; j < wide; j++)
                sums[g][j] = fma(all(weights[g * PART + i]), values[j], sums[g][j]);
    }
    for (int g = 0; g < n; g++)
        for (int j = 0; j < wide; j++)
            store_some(out[g] + d + j * LANES, sums[g][j], left - j * LANES);
}

template <int n, class T>
void gather(const Sight& seen, int64_t at, int64_t low, int64_t high, const Rows& values,
            const float* weights, float* const* out, bool afresh) {
    const T* rows = values.of<T>(seen.cache);
    const int64_t stride = values.stride, dim = values.dim;
    int64_t d = 0;
    for (; d + WIDE * LANES <= dim; d += WIDE * LANES)
        gather_some<n, WIDE>(seen, at, low, high, rows + d, stride, WIDE * LANES, weights, out, d,
                             afresh);
    for (; d < dim; d += LANES)
        gather_some<n, 1>(seen, at, low, high, rows + d, stride, dim - d, weights, out, d, afresh);
}

// Puts what a later part gathered behind what the earlier ones did.
inline void join(Gathered so_far, Gathered later, int64_t dim) {
    const float peak = later.peak > so_far.peak ? later.peak : so_far.peak;
    const Vec by = bounded_exp(Vec{so_far.peak - peak, later.peak - peak});
    const float one = by[0], two = by[1];
    so_far.peak = peak;
    so_far.total = so_far.total * one + later.total * two;
    for (int64_t d = 0; d < dim; d += LANES) {
        Vec v = load_some(so_far.values + d, dim - d) * one;
        v = fma(load_some(later.values + d, dim - d), all(two), v);
        store_some(so_far.values + d, v, dim - d);
    }
}

// Some rows of a pass, all query heads of one KV head: the lists of these rows, and scores in a part of
// them. Heads are counted row by row.
class SomeRows {
   public:
    SomeRows(const Pass& pass, const Operation& op, int64_t kv_head, int64_t first_row,
             int64_t end_row)
        : op_(op), groups_(op.heads / op.kv_heads), heads_((end_row - first_row) * groups_),
          first_head_(kv_head * groups_), first_row_(first_row), end_row_(end_row),
          rows_(keys_and_values(pass, op, kv_head)) {
        for (int64_t r = first_row; r < end_row; r++)
            sights_[r - first_row] = sight(pass, r, op.layer, op.window);
    }
    const Sight& sight_of(int64_t row) const { return sights_[row - first_row_]; }

   protected:
    int64_t head_of(int64_t row) const { return (row - first_row_) * groups_; }

    template <class Each>  // each(row, low, high): what it sees of the part
    void by_seeing_rows(int64_t begin, Each each) const {
        for (int64_t r = first_row_; r < end_row_; r++) {
            const auto [low, high] = sight_of(r).of(begin, PART);
            if (low < high) each(r, low, high);
        }
    }
    template <class Each>  // each(row, group, its scores)
    void by_seeing_heads(float* scores, int64_t begin, Each each) const {
        by_seeing_rows(begin, [&](int64_t r, int64_t low, int64_t high) {
            const Tilts tilts(op_, sight_of(r), begin, low, high);
            for (int64_t g = 0; g < groups_; g++) {
                float* const of = scores + (head_of(r) + g) * PART;
                each(r, g, Scores{of, low, high, op_.value, op_.cap, tilts.of(first_head_ + g)});
            }
        });
    }
    // Finds the peaks of scores in a part and weighs them by `weigh(head, scores, where to gather)`,
    // while memory is asked for what is coming.
    template <class Place, class Weigh>
    void weigh_all(float* scores, int64_t begin, Coming coming, Place place, Weigh weigh) const {
        by_seeing_heads(scores, begin, [&](int64_t r, int64_t g, const Scores& own) {
            place(r, g).peak = own.peak();
        });
        by_seeing_heads(scores, begin, [&](int64_t r, int64_t g, const Scores& own) {
            coming.ask();
            weigh(head_of(r) + g, own, place(r, g));
        });
    }
    // Lets a part of rows that lie in order come, as far as the first of ours sees it.
    template <class T>
    void expect(Coming& coming, const Rows& part, int64_t begin) const {
        const Sight& seen = sight_of(first_row_);
        const int64_t n = seen.before - begin < PART ? seen.before - begin : PART;
        if (n > 0 && part.dim)
            coming.add(part.of<T>(seen.cache) + begin * part.stride, n * part.stride);
    }

    const Operation& op_;
    const int64_t groups_, heads_, first_head_, first_row_, end_row_;
    const KeysAndValues rows_;

   private:
    Sight sights_[ROWS_AT_ONCE];
};

// Some rows over parts of their lists.
template <class As>
class Unit : public SomeRows {
   public:
    using T = typename As::Held;
    using Word = typename As::Of::Row;

    // `queries` are those of row 0, `stride` apart; `room` is the thread's.
    Unit(const Pass& pass, const Operation& op, int64_t kv_head, int64_t first_row, int64_t end_row,
         const T* queries, int64_t stride, float* room)
        : SomeRows(pass, op, kv_head, first_row, end_row), dim_(op.head_dim),
          tile_(room, rows_.keys, rows_.more_keys), scores_(room + KeyTile<As>::floats(dim_)) {
        queries += first_row * stride + first_head_ * dim_;
        if constexpr (sizeof(Word) == As::EACH * sizeof(T)) {
            queries_ = (const Word*)queries, stride_ = stride / As::EACH;
        } else {
            Word* const wide = scores_ + heads_ * PART;
            queries_ = wide, stride_ = groups_ * dim_;
            for (int64_t r = 0; r < end_row - first_row; r++)
                copy(queries + r * stride, wide + r * stride_, stride_);
        }
    }
    static int64_t room_floats(const Operation& op, int64_t heads) {
        return KeyTile<As>::floats(op.head_dim) + heads * (PART + IS_NARROW<T> * op.head_dim);
    }

    // Only rows that see something of the part gather; `place(row, group)` says where.
    template <class Place>
    void run(int64_t part, bool, Place place) {
        const int64_t begin = part * PART;
        by_seeing_rows(begin, [&](int64_t r, int64_t, int64_t) {
            for (int64_t g = 0; g < groups_; g++)
                take_over(place(r, g).values, Gathered::floats(rows_.values.dim));
        });
        for (int64_t at = begin; at < begin + PART; at += TILE) score_tile(begin, at);
        Coming coming;
        expect<T>(coming, rows_.values, begin);
        weigh_all(scores_, begin, coming, place, [](int64_t, const Scores& own, Gathered gathered) {
            weigh(own, gathered, [&](int64_t at, Vec w) { store(own.of + at, w); });
        });
        const int64_t shared = gather_shared(begin, place);
        by_seeing_rows(begin, [&](int64_t r, int64_t low, int64_t high) {
            const int64_t from = low < shared ? shared : low;
            if (from < high)
                gather_heads(sight_of(r), begin, from, high, head_of(r), groups_, place, from == low);
        });
    }

   private:
    int64_t words() const { return dim_ / As::EACH; }
    float* scores(int64_t head) const { return scores_ + head * PART; }
    void score_tile(int64_t begin, int64_t at) {
        tile_.clear();
        n_asked_ = 0;
        for (int64_t r = first_row_; r < end_row_; r++) {
            const Sight& seen = sight_of(r);
            const auto [low, high] = seen.of(at, TILE);
            if (low >= high) continue;
            if (!tile_.holds(seen, at, int(low), int(high))) {
                answer();
                tile_.fill(seen, at, int(low), int(high));
            }
            for (int64_t g = 0; g < groups_; g++) {
                const Word* query = queries_ + (r - first_row_) * stride_ + g * words();
                asked_[n_asked_++] = {query, scores(head_of(r) + g) + at - begin};
                if (n_asked_ == MOST_ASKED) answer();
            }
        }
        answer();
    }
    // Scores the queries that have been collected.
    void answer() {
        static_assert(MOST_ASKED <= 8, "no more than there are cases");
        using Score = void (*)(const Asked<As>*, const Word*, int64_t);
        static constexpr Score some[] = {score<As, 1>, score<As, 2>, score<As, 3>, score<As, 4>,
                                         score<As, 5>, score<As, 6>, score<As, 7>, score<As, 8>};
        if (n_asked_) some[n_asked_ - 1](asked_, tile_.keys(), words());
        n_asked_ = 0;
    }
    // Gathers for all rows at once what they see in the same slots from the first place on that any sees.
    // Returns the place behind, or nought where there is nothing of that kind.
    template <class Place>
    int64_t gather_shared(int64_t begin, Place place) {
        const Sight& one = sight_of(first_row_);
        const int64_t low = one.of(begin, PART).low;
        int64_t high = PART;
        for (int64_t r = first_row_; r < end_row_; r++) {
            const Sight& seen = sight_of(r);
            if (seen.cache != one.cache || seen.of(begin, PART).low != low) return 0;
            const int64_t end = (seen.before < seen.end ? seen.before : seen.end) - begin;
            high = end < high ? end : high;
        }
        if (low >= high) return 0;
        gather_heads(one, begin, low, high, 0, heads_, place, true);
        return high;
    }
    // Gathers for `n` heads from one on, which see the same.
    template <class Place>
    void gather_heads(const Sight& seen, int64_t begin, int64_t low, int64_t high, int64_t first,
                      int64_t n, Place place, bool afresh) {
        using Gather = void (*)(const Sight&, int64_t, int64_t, int64_t, const Rows&, const float*,
                                float* const*, bool);
        static_assert(MOST_HEADS == 6, "as many as there are cases");
        static constexpr Gather some[] = {gather<1, T>, gather<2, T>, gather<3, T>,
                                          gather<4, T>, gather<5, T>, gather<6, T>};
        for (int64_t h = first; h < first + n; h += MOST_HEADS) {
            const int64_t count = first + n - h < MOST_HEADS ? first + n - h : MOST_HEADS;
            float* out[MOST_HEADS];
            for (int64_t i = 0; i < count; i++)
                out[i] = place(first_row_ + (h + i) / groups_, (h + i) % groups_).values;
            some[count - 1](seen, begin, low, high, rows_.values, scores(h), out, afresh);
        }
    }

    const int64_t dim_;
    const Word* queries_;  // of the first of the rows, as keys are multiplied by them
    int64_t stride_;
    KeyTile<As> tile_;
    float* scores_;
    Asked<As> asked_[MOST_ASKED];
    int n_asked_ = 0;
};

}  // namespace flat
