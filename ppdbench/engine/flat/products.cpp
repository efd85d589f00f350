// The products of products.h, each by the way that is asked for.
#include "linear.h"
#include "side_by_side.h"
#include "stored.h"
#include "stored_tiles.h"

namespace flat {

// Calls `each` with the kind of numbers that are multiplied, how many steps a sum has, and how many of a
// row's numbers there are from row to row.
template <class Each>
static void by_kind(int path, bool narrow, int64_t deep, int64_t stride, Each each) {
    if (!narrow) return each(OfFloats{}, deep, stride);
    if (path == VECTORS_ONLY) return each(OfPairs{}, deep / 2, stride);
    each(OfPairsAtOnce{}, deep / 2, OfPairsAtOnce::PAIRED ? stride / 2 : stride);
}

void products(int path, bool narrow, bool few_ask, const Block& block, int64_t deep,
              const void* rows, int64_t stride, int64_t n) {
    if (narrow && is_tiled(path))
        return with_tiles(path, [&](auto& tiles) {
            tiled_block_over(tiles, (const Bfloat16*)block.weights, deep, (const Bfloat16*)rows,
                             stride, n, block.sums);
        });
    by_kind(path, narrow, deep, stride, [&](auto of, int64_t steps, int64_t apart) {
        using Of = decltype(of);
        block_over<Of>((const typename Of::Weight*)block.weights, steps,
                       (const typename Of::Row*)rows, apart, n, block.sums, few_ask);
    });
}

bool takes_two(int path, bool narrow, int64_t n) {
    if (narrow && is_tiled(path)) return false;
    bool found = false;
    by_kind(path, narrow, 0, 0, [&](auto of, int64_t, int64_t) {
        found = n <= most_with_two<decltype(of)>();
    });
    return found;
}

void products_of_two(int path, bool narrow, bool few_ask, const Block& one, const Block& two,
                     int64_t deep, const void* rows, int64_t stride, int64_t n) {
    by_kind(path, narrow, deep, stride, [&](auto of, int64_t steps, int64_t apart) {
        using Of = decltype(of);
        two_blocks_over<Of>(one, two, steps, (const typename Of::Row*)rows, apart, n, few_ask);
    });
}

void stored_products(int form, int path, bool narrow, const uint32_t* groups, int64_t deep,
                     const void* rows, int64_t stride, int64_t n, float* sums, float* room) {
    by_kind(path, narrow, deep, stride, [&](auto of, int64_t, int64_t apart) {
        using Of = decltype(of);
        stored_block_over<Of>(form, groups, deep / GROUP, narrow, (const typename Of::Row*)rows,
                              apart, n, sums, room);
    });
}

void products_by_outputs(int form, int path, const uint32_t* groups, const uint32_t* pairs,
                         const SideBySide& lie, int64_t n, float* sums, float* room) {
    with_tiles(path, [&](auto& tiles) {
        blocks_by_outputs(tiles, form, groups, pairs, lie, n, sums, room);
    });
}

}  // namespace flat
