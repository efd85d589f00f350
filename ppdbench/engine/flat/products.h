// Products of rows with a block of 32 outputs of a weight: by which ways there are, and how weights may
// be stored. What does them stands in products.cpp, which is compiled beside the rest.
#pragma once

#include "simd.h"
#include "tiles.h"

namespace flat {

// Pairs of bfloat16 numbers are multiplied by an instruction of the processor.
#if defined(__AVX512BF16__)
#define FLAT_DOT_PRODUCTS 1
#endif

// The ways to multiply bfloat16 numbers.
enum Path { VECTORS_ONLY, DOT_PRODUCTS, TILES, EMULATED_TILES };

// Those of them that this library is built for, as bits: of tiles also what is missing on this processor.
constexpr int BUILT = 1 << VECTORS_ONLY
#ifdef FLAT_DOT_PRODUCTS
                      | 1 << DOT_PRODUCTS
#endif
#ifdef FLAT_TILES
                      | 1 << TILES
#endif
#ifdef FLAT_EMULATED_TILES
                      | 1 << EMULATED_TILES
#endif
    ;
constexpr bool is_built(Path path) { return BUILT >> path & 1; }

inline bool is_tiled(int path) {
    return (is_built(TILES) && path == TILES) || (is_built(EMULATED_TILES) && path == EMULATED_TILES);
}

// Calls `each` with the tiles of a way to multiply.
template <class Each>
inline void with_tiles(int path, Each each) {
    if constexpr (is_built(EMULATED_TILES))
        if (path == EMULATED_TILES) {
            EmulatedTiles tiles;
            return each(tiles);
        }
    if constexpr (is_built(TILES)) {
        ProcessorTiles tiles;
        each(tiles);
    }
}

// How weights are stored (stored.h). With FOR_TILES levels lie in another order (stored_tiles.h), with
// HALVES scales and shifts take half the room.
enum Form { PLAIN, NIBBLES, BYTES, FOR_TILES = 4, HALVES = 8 };

constexpr int64_t GROUP = 32;  // inputs that share scales and shifts
constexpr int64_t WORD_BITS = 32;
// Groups that are unpacked at once: what they become stays in the nearest cache.
constexpr int64_t AT_ONCE = 2;

inline int64_t level_bits(int form) { return (form & NIBBLES) ? 4 : 8; }
inline int64_t scales_words(int form) { return form & HALVES ? BLOCK : 2 * BLOCK; }
inline int64_t group_words(int form) {
    return scales_words(form) + GROUP * BLOCK * level_bits(form) / WORD_BITS;
}
// The floats that a thread unpacks into.
constexpr int64_t UNPACKED_FLOATS = AT_ONCE * GROUP * BLOCK;

// A block of weights, and where its sums with rows go.
struct Block {
    const void* weights;
    float* sums;
};

// Rows and weights are float32, or bfloat16 with `deep` a multiple of 32; what rows are then, the
// path says. `few_ask`: few rows ask memory for weights ahead as many do.
void products(int path, bool narrow, bool few_ask, const Block& block, int64_t deep,
              const void* rows, int64_t stride, int64_t n);

// True if so few rows meet two blocks sooner together than one after the other; and both their products.
bool takes_two(int path, bool narrow, int64_t n);
void products_of_two(int path, bool narrow, bool few_ask, const Block& one, const Block& two,
                     int64_t deep, const void* rows, int64_t stride, int64_t n);

// As `products`, over a block of stored weights; `room` has UNPACKED_FLOATS.
void stored_products(int form, int path, bool narrow, const uint32_t* groups, int64_t deep,
                     const void* rows, int64_t stride, int64_t n, float* sums, float* room);

// The same of weights that are stored for tiles, with rows that lie side by side.
struct SideBySide;
void products_by_outputs(int form, int path, const uint32_t* groups, const uint32_t* pairs,
                         const SideBySide& lie, int64_t n, float* sums, float* room);

}  // namespace flat
