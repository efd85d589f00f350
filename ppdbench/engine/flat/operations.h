// What a program consists of, as Python hands it over; `ops.py` has the same structures.
#pragma once

#include <cstdint>

namespace flat {

enum Kind {
    ENTER,       // the caller's rows into a buffer
    LEAVE,       // a buffer into the caller's rows; the likeliest number of each row
    LINEAR,      // products of one buffer, or of parts of it, each into a part of a buffer, perhaps
                 // onto another
    GATED,       // act(product) * product
    RMS_NORM,
    LAYER_NORM,
    ROTATE,
    STORE,       // keys and values into the cache
    ATTEND,      // weights: what a key further on is worth to a head; biases: sinks of heads
    ACT,         // an activation, perhaps times another buffer
    ADD,
    COPY,
    PICK,        // columns in another order, the same number to the front of each head
    CAP,
    SCALE,
    XIELU,       // an activation with three factors of its own
    MIX,         // onto parts of a buffer the sum of parts of another, each times a number of a third
    CUT,         // what lies above the mean of a row by so many deviations, less those
    CLIP,        // no number further from nought than a value
    KINDS,
};

enum Flag {
    PLUS_ONE = 1,
    ROUND_FIRST = 2,
    ONTO = 4,
    TIMES = 8,
    NEIGHBOURS = 16,
    COARSE = 32,
    APART = 64,    // products read a part of the source each, all as wide
    LATENTS = 128  // one row serves all heads: what is held as values, then what is held as keys,
                   // is their key, and the latter their value
};

// Columns of a buffer from `first` on.
struct Columns {
    int32_t buffer, first;
};

// A product: `out` numbers of `in`.
struct Product {
    const void* blob;
    const float* bias;  // as many as there are outputs in whole blocks; or null
    int64_t in, out;
    Columns target;
    int64_t first;      // of the numbers of the source those that it reads
    int64_t form;       // of the weights: see stored.h
};

struct Operation {
    int32_t kind, flags;
    Columns source, other, target;
    int64_t width;  // numbers of a row
    int64_t count;  // products; or numbers that are normed together, or picked for each head; or
                    // parts that are mixed, into one part for each head
    const Product* products;
    const float *weight, *bias;
    const int32_t* order;
    int32_t layer, turn, act, heads, kv_heads, head_dim, value_dim, rotary_dim;
    int32_t first_value, value_heads;  // heads whose values those of keys take in turn; 0: their own
    int64_t window;      // keys, itself included; 0: all
    float value, cap;    // eps, or the scale of scores, or a factor; 0: no cap
};

// One pass over `rows` rows.
struct Pass {
    int64_t rows, start, capacity;
    int64_t layers;            // of each cache; all caches have the same capacity
    const int64_t* widths;     // by layer: numbers that a slot of a head has room for
    int64_t causal;            // row i sees what is before slot start + i and itself; no lists
    const int32_t* slots;      // where each row is stored
    const int32_t* positions;  // where each row stands
    const int32_t* reach;      // how many slots each row sees from the first on; null: `start`
    const int32_t* seen;       // slots that rows see behind those, in the order of positions
    const int32_t* places;     // positions of those
    const int32_t* offsets;    // of row i: [offsets[i], offsets[i + 1])
    const int32_t* owners;     // the cache of each row, where they are several sequences'; or null
    const int64_t* tokens;     // whose rows of `source` come in; or null: those of the pass do
    int64_t words;             // rows that `source` has then
    void* const* keys;         // by cache and layer: [heads, capacity, width]
    void* const* values;
    int64_t whole;             // tables of turns have a row for each position
    const float* const* cos;   // by kind of turn: [rows or positions, rotary_dim]
    const float* const* sin;
    const void* source;        // [rows, width of ENTER]
    void* target;              // [rows, width of LEAVE]
    int64_t in_blob;           // of `source` tokens take the weights of an output: it is a blob
    int64_t* likeliest;        // [rows] or null
    float* peaks;

    // Where the keys and values that a row may see are, among those of all caches and layers.
    int64_t held(int64_t row, int32_t layer) const {
        return (owners ? owners[row] * layers : 0) + layer;
    }
    // Where in the tables of turns a row's angles are.
    int64_t turned(int64_t row) const { return whole ? positions[row] : row; }
    // True if each token has a row that can come in.
    bool has_tokens() const {
        for (int64_t row = 0; tokens && row < rows; row++)
            if (tokens[row] < 0 || tokens[row] >= words) return false;
        return true;
    }
};

// The operations [first, end).
struct Span {
    int32_t first, end;
};

// A pass through some spans of a program.
struct Run {
    void* buffers;  // of the program
    const Operation* ops;
    const Span* spans;
    int64_t n_spans;
    int64_t narrow;
    const Pass* pass;
};

}  // namespace flat
