// Products of matrix tiles (AMX): 16 rows of 32 bfloat16 numbers against 16 columns of them.
//
// The driver below is the same for the processor's tiles and for emulated ones, which show on any
// machine that it packs and counts rightly. Eight tiles: four sums (two of rows, two of columns),
// two of rows, two of weights.
#pragma once

#include <type_traits>

#include "simd.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#define FLAT_TILES 1
#endif

namespace flat {

constexpr int TILE_ROWS = 16;
constexpr int TILE_BYTES = 64;
constexpr int64_t TILE_DEEP = 32;  // numbers of a row that one product of tiles sums
enum Tile { SUM_0_LEFT, SUM_0_RIGHT, SUM_1_LEFT, SUM_1_RIGHT, ROWS_0, ROWS_1, LEFT, RIGHT };

// What the tiles of sums have below one another: rows, or the 32 outputs of a block.
enum Way { BY_ROWS, BY_OUTPUTS };

// The shapes of the tiles, as the processor takes them.
struct TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    // For up to 32 rows, 16 to a tile. By outputs they are columns of pairs of numbers.
    TileShapes(int n, Way way) {
        // A tile without rows is none: unused ones keep a row.
        const int first = n < TILE_ROWS ? n : TILE_ROWS, second = n > first ? n - first : 1;
        const int held[8] = {first, first, second, second, first, second, TILE_ROWS, TILE_ROWS};
        for (int i = 0; i < 8; i++) {
            rows[i] = way == BY_ROWS ? held[i] : TILE_ROWS;
            bytes[i] = way == BY_ROWS ? TILE_BYTES : held[i] * 4;
        }
    }
};
static_assert(sizeof(TileShapes) == 64, "as the processor takes them");

// What the processor does, in order: even and odd products apart, then both onto the sum. Not
// inlined, so that the library is built sooner.
struct EmulatedTiles {
    uint8_t data[8][TILE_ROWS][TILE_BYTES] = {};
    TileShapes shapes{1, BY_ROWS};

    void shape(int n, Way way) { shapes = TileShapes(n, way); }
    template <int t>
    __attribute__((noinline)) void zero() {
        memset(data[t], 0, sizeof data[t]);
    }
    template <int t>
    __attribute__((noinline)) void load(const void* from, int64_t stride) {
        zero<t>();
        for (int i = 0; i < shapes.rows[t]; i++)
            memcpy(data[t][i], (const char*)from + i * stride, shapes.bytes[t]);
    }
    template <int t>
    __attribute__((noinline)) void store(void* to, int64_t stride) const {
        for (int i = 0; i < shapes.rows[t]; i++)
            memcpy((char*)to + i * stride, data[t][i], shapes.bytes[t]);
    }
    template <int sum, int rows, int columns>
    __attribute__((noinline)) void multiply() {
        for (int i = 0; i < shapes.rows[sum]; i++)
            for (int j = 0; j < TILE_BYTES / 4; j++) {
                float even = 0, odd = 0, held;
                for (int k = 0; k < shapes.rows[columns]; k++) {
                    even = __builtin_fmaf(number(rows, i, 2 * k), number(columns, k, 2 * j), even);
                    odd = __builtin_fmaf(number(rows, i, 2 * k + 1), number(columns, k, 2 * j + 1),
                                         odd);
                }
                memcpy(&held, &data[sum][i][4 * j], 4);
                held += even + odd;
                memcpy(&data[sum][i][4 * j], &held, 4);
            }
    }
    static void release() {}

   private:
    float number(int tile, int row, int at) const {
        uint32_t bits = 0;
        memcpy((char*)&bits + 2, &data[tile][row][2 * at], 2);
        float x;
        memcpy(&x, &bits, 4);
        return x;
    }
};

#ifdef FLAT_TILES

// The processor's tiles. A thread shapes its own and gives them back when it rests: the system
// would store them whenever it puts the thread aside.
struct ProcessorTiles {
    static int& shaped_for() {
        static thread_local int rows = 0;  // below nought by outputs
        return rows;
    }
    static void shape(int n, Way way) {
        const int wanted = way == BY_ROWS ? n : -n;
        if (shaped_for() == wanted) return;
        TileShapes shapes(n, way);
        asm volatile("ldtilecfg %0" ::"m"(shapes));
        shaped_for() = wanted;
    }
    static void release() {
        if (shaped_for() == 0) return;
        asm volatile("tilerelease");
        shaped_for() = 0;
    }
    template <int t>
    static void zero() {
        asm volatile("tilezero %%tmm%c0" ::"i"(t));
    }
    template <int t>
    static void load(const void* from, int64_t stride) {
        asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(t), "r"(from), "r"(stride) : "memory");
    }
    template <int t>
    static void store(void* to, int64_t stride) {
        asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(t), "r"(to), "r"(stride) : "memory");
    }
    template <int sum, int rows, int columns>
    static void multiply() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(rows), "i"(columns));
    }
};

// True if the processor has tiles of bfloat16 and the system lets this process use them.
inline bool tiles_granted() {
    constexpr unsigned TILE = 1u << 24, OF_BFLOAT16 = 1u << 22, SAVED = 3u << 17, SAVES = 1u << 27;
    constexpr long ASK = 0x1023, TILE_DATA = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM)
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & SAVES)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if ((d & (TILE | OF_BFLOAT16)) != (TILE | OF_BFLOAT16)) return false;
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & SAVED) != SAVED) return false;
    return syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
}

#else

using ProcessorTiles = EmulatedTiles;
inline bool tiles_granted() { return false; }

#endif

inline int64_t whole_tiles(int64_t n) { return (n + TILE_DEEP - 1) / TILE_DEEP * TILE_DEEP; }

// The four tiles of sums of up to 32 rows and 32 columns; those of the second 16 rows where there
// are `two`. Their place in memory is [rows, 32], `stride` apart.
template <bool two, class Tiles>
class SumTiles {
   public:
    SumTiles(Tiles& tiles, float* sums, int64_t stride)
        : tiles_(tiles), sums_(sums), second_(sums + TILE_ROWS * stride), stride_(stride * 4) {}

    void zero() {
        tiles_.template zero<SUM_0_LEFT>();
        tiles_.template zero<SUM_0_RIGHT>();
        if (two) tiles_.template zero<SUM_1_LEFT>();
        if (two) tiles_.template zero<SUM_1_RIGHT>();
    }
    void load() {
        tiles_.template load<SUM_0_LEFT>(sums_, stride_);
        tiles_.template load<SUM_0_RIGHT>(sums_ + TILE_ROWS, stride_);
        if (two) tiles_.template load<SUM_1_LEFT>(second_, stride_);
        if (two) tiles_.template load<SUM_1_RIGHT>(second_ + TILE_ROWS, stride_);
    }
    // Takes a block of columns up: pairs of numbers, one below another, of 32 columns.
    void take(const void* block) {
        constexpr int64_t STRIDE = BLOCK * 2 * sizeof(Bfloat16);
        tiles_.template load<LEFT>(block, STRIDE);
        tiles_.template load<RIGHT>((const char*)block + TILE_BYTES, STRIDE);
    }
    // Adds 32 numbers of each row times the columns that were taken up.
    void multiply(const Bfloat16* rows, int64_t stride) {
        const int64_t bytes = stride * sizeof(Bfloat16);
        tiles_.template load<ROWS_0>(rows, bytes);
        tiles_.template multiply<SUM_0_LEFT, ROWS_0, LEFT>();
        tiles_.template multiply<SUM_0_RIGHT, ROWS_0, RIGHT>();
        if (!two) return;
        tiles_.template load<ROWS_1>(rows + TILE_ROWS * stride, bytes);
        tiles_.template multiply<SUM_1_LEFT, ROWS_1, LEFT>();
        tiles_.template multiply<SUM_1_RIGHT, ROWS_1, RIGHT>();
    }
    void store() {
        tiles_.template store<SUM_0_LEFT>(sums_, stride_);
        tiles_.template store<SUM_0_RIGHT>(sums_ + TILE_ROWS, stride_);
        if (two) tiles_.template store<SUM_1_LEFT>(second_, stride_);
        if (two) tiles_.template store<SUM_1_RIGHT>(second_ + TILE_ROWS, stride_);
    }

   private:
    Tiles& tiles_;
    float *const sums_, *const second_;
    const int64_t stride_;
};

// Calls `each(first, two)` for up to 32 of some rows after another, with tiles in shape for them;
// `two` is true where it takes two tiles to hold them.
template <class Tiles, class Each>
void by_tiles(Tiles& tiles, int64_t n, Each each, Way way = BY_ROWS) {
    for (int64_t i = 0; i < n; i += 2 * TILE_ROWS) {
        const int64_t count = n - i < 2 * TILE_ROWS ? n - i : 2 * TILE_ROWS;
        tiles.shape(int(count), way);
        if (count > TILE_ROWS)
            each(i, std::true_type());
        else
            each(i, std::false_type());
    }
}

// Up to 32 rows [n, deep] against a block of weights [deep / 2, 32, 2]; sums [n, 32].
template <bool two, class Tiles>
void tiles_over(Tiles& tiles, const Bfloat16* weights, int64_t deep, const Bfloat16* rows,
                int64_t stride, float* sums, int64_t sum_stride, int64_t ahead) {
    SumTiles<two, Tiles> found(tiles, sums, sum_stride);
    found.zero();
    for (int64_t k = 0; k < deep; k += TILE_DEEP) {
        const Bfloat16* w = weights + k * BLOCK;
        if (ahead)
            for (int64_t i = 0; i < TILE_DEEP * BLOCK; i += 32)
                __builtin_prefetch(w + ahead + i, 0, two ? 3 : 2);
        found.take(w);
        found.multiply(rows + k, stride);
    }
    found.store();
}

}  // namespace flat
