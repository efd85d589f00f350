// The products of products.h, each by the way that is asked for.
#include "linear.h"
#include "side_by_side.h"
#include "stored.h"
#include "stored_tiles.h"

namespace flat {

void products(int path, bool narrow, bool few_ask, const void* weights, int64_t deep,
              const void* rows, int64_t stride, int64_t n, float* sums) {
    if (!narrow)
        return block_over<OfFloats>((const float*)weights, deep, (const float*)rows, stride, n,
                                    sums, few_ask);
    if (is_tiled(path))
        return with_tiles(path, [&](auto& tiles) {
            tiled_block_over(tiles, (const Bfloat16*)weights, deep, (const Bfloat16*)rows, stride, n,
                             sums);
        });
    if (path == VECTORS_ONLY)
        return block_over<OfPairs>((const uint32_t*)weights, deep / 2, (const float*)rows, stride,
                                   n, sums, few_ask);
    block_over<OfPairsAtOnce>((const uint32_t*)weights, deep / 2,
                              (const OfPairsAtOnce::Row*)rows, stride / 2, n, sums, few_ask);
}

void stored_products(int form, int path, bool narrow, const uint32_t* groups, int64_t deep,
                     const void* rows, int64_t stride, int64_t n, float* sums, float* room) {
    const int64_t count = deep / GROUP;
    if (!narrow)
        return stored_block_over<OfFloats>(form, groups, count, false, (const float*)rows, stride, n,
                                           sums, room);
    if (path == VECTORS_ONLY)
        return stored_block_over<OfPairs>(form, groups, count, true, (const float*)rows, stride, n,
                                          sums, room);
    stored_block_over<OfPairsAtOnce>(form, groups, count, true, (const OfPairsAtOnce::Row*)rows,
                                     stride / 2, n, sums, room);
}

void products_by_outputs(int form, int path, const uint32_t* groups, const uint32_t* pairs,
                         const SideBySide& lie, int64_t n, float* sums, float* room) {
    with_tiles(path, [&](auto& tiles) {
        blocks_by_outputs(tiles, form, groups, pairs, lie, n, sums, room);
    });
}

}  // namespace flat
