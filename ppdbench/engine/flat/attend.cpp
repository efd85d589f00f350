// Units of attention, of which kind the type and the way to multiply say.
#include "attend.h"

#include "products.h"
#include "tiled_attention.h"

namespace flat {

namespace {

template <class Some>
int64_t unit_floats(const Attending& whole) {
    return Some::room_floats(whole.op, whole.groups() * whole.rows_of_block());
}

template <class Some, class T>
void attend_by(const Attending& whole, int64_t unit, const T* queries, int64_t stride, float* room) {
    const Operation& op = whole.op;
    const int64_t groups = whole.groups(), rows = whole.pass.rows, parts = whole.parts;
    const int64_t part = unit % whole.parts_apart(), rest = unit / whole.parts_apart();
    const int64_t block = rest % whole.row_blocks(), kv_head = rest / whole.row_blocks();
    const int64_t first = rows * block / whole.row_blocks();
    const int64_t end = rows * (block + 1) / whole.row_blocks();
    Some some(whole.pass, op, kv_head, first, end, queries, stride, room);
    if (whole.is_apart()) {
        auto place = [&](int64_t row, int64_t group) {
            return whole.gathered(part, row, kv_head * groups + group);
        };
        return some.run(part, false, place);
    }
    room += unit_floats<Some>(whole);
    for (int64_t p = 0; p < parts; p++) {
        auto place = [&](int64_t row, int64_t group) -> Gathered {
            if (p == some.sight_of(row).first_part())
                return whole.gathered(0, row, kv_head * groups + group);
            const int64_t at = (row - first) * groups + group;
            return {room + at * Gathered::floats(op.value_dim), op.value_dim};
        };
        some.run(p, p + 1 < parts, place);
        for (int64_t r = first; r < end; r++) {
            const Sight& seen = some.sight_of(r);
            if (p <= seen.first_part() || p >= seen.end_part()) continue;
            for (int64_t g = 0; g < groups; g++)
                join(whole.gathered(0, r, kv_head * groups + g), place(r, g), op.value_dim);
        }
    }
}

// True if each part of the keys is of whole pairs.
bool is_paired(const Operation& op) {
    return op.head_dim % 2 == 0 && !(op.flags & LATENTS && op.value_dim % 2);
}

}  // namespace

template <class T>
void attend(const Attending& whole, int path, int64_t unit, const T* queries, int64_t stride,
            float* room) {
    if constexpr (IS_NARROW<T>)
        if (is_tiled(path))
            return with_tiles(path, [&](auto& tiles) {
                attend_by<TiledUnit<std::decay_t<decltype(tiles)>>>(whole, unit, queries, stride, room);
            });
#ifdef FLAT_DOT_PRODUCTS
    if constexpr (IS_NARROW<T>)
        if (path != VECTORS_ONLY && is_paired(whole.op))
            return attend_by<Unit<Paired>>(whole, unit, queries, stride, room);
#endif
    attend_by<Unit<Numbers<T>>>(whole, unit, queries, stride, room);
}

template <class T>
int64_t floats_to_attend(const Attending& whole, int path) {
    const int64_t heads = whole.groups() * whole.rows_of_block();
    const bool in_tiles = IS_NARROW<T> && is_tiled(path);
    return (in_tiles ? unit_floats<TiledUnit<ProcessorTiles>>(whole) : unit_floats<Unit<Numbers<T>>>(whole)) +
           heads * Gathered::floats(whole.op.value_dim);
}

template void attend<float>(const Attending&, int, int64_t, const float*, int64_t, float*);
template void attend<Bfloat16>(const Attending&, int, int64_t, const Bfloat16*, int64_t, float*);
template int64_t floats_to_attend<float>(const Attending&, int);
template int64_t floats_to_attend<Bfloat16>(const Attending&, int);

}  // namespace flat
