// Products of matrix tiles (AMX): 16 rows of 32 bfloat16 numbers against 16 columns of them.
//
// The driver below is the same for the processor's tiles and for emulated ones, which show on any
// machine that it packs and counts rightly. Of eight tiles it fills four: what another thread leaves
// of a core, such as one of another virtual machine, has room for few more. There products with five
// full ones take a tenth longer than with four, and with eight twice as long. The other three are for
// more than 16 rows by outputs, of which each has to be multiplied by what was unpacked.
#pragma once

#include <type_traits>

#include "simd.h"

// Processors that have tiles multiply pairs of bfloat16 by vectors as well: for others nothing is built.
#if defined(__AVX512BF16__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#define FLAT_TILES 1
#endif

namespace flat {

constexpr int TILE_ROWS = 16;
constexpr int TILE_BYTES = 64;
constexpr int64_t TILE_DEEP = 32;  // numbers of a row that one product of tiles sums
enum Tile { SUM_LEFT, SUM_RIGHT, ROWS, COLUMNS, SECOND_LEFT, SECOND_RIGHT, SECOND_ROWS, N_TILES };

// What the tiles of sums have below one another: rows, or the 32 outputs of a block.
enum Way { BY_ROWS, BY_OUTPUTS };

// The shapes of the tiles, as the processor takes them.
struct TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    // For up to 16 rows, or 32 by outputs, where they are columns of pairs of numbers.
    TileShapes(int n, Way way) {
        // A tile without columns is none: unused ones keep a column.
        const int first = n < TILE_ROWS ? n : TILE_ROWS, second = n > first ? n - first : 1;
        const int held[N_TILES] = {first, first, first, TILE_ROWS, second, second, second};
        for (int i = 0; i < N_TILES; i++) {
            rows[i] = way == BY_ROWS && i != COLUMNS ? first : TILE_ROWS;
            bytes[i] = way == BY_ROWS ? TILE_BYTES : held[i] * 4;
        }
    }
};
static_assert(sizeof(TileShapes) == 64, "as the processor takes them");

// What the processor does, in order: even and odd products apart, then both onto the sum. For tests, which
// build with FLAT_EMULATED_TILES; not inlined, so that the library is built sooner.
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
        const bool is_full = way == BY_OUTPUTS && n == 2 * TILE_ROWS;  // as for 16 rows
        const int wanted = is_full ? TILE_ROWS : way == BY_ROWS ? n : -n;
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

// The tiles of sums of up to 16 rows and 32 columns, or 64 where there are `two` blocks of weights. Their
// place in memory is [rows, columns], `stride` apart.
template <class Tiles, bool two = false>
class SumTiles {
   public:
    SumTiles(Tiles& tiles, float* sums, int64_t stride)
        : tiles_(tiles), sums_(sums), stride_(stride * 4) {}

    void zero() {
        each([&](auto tile, float*) { tiles_.template zero<tile>(); });
    }
    void load() {
        each([&](auto tile, float* at) { tiles_.template load<tile>(at, stride_); });
    }
    // Adds 32 numbers of each row times a block: pairs of numbers, one below another, of 32 columns.
    void add(const Bfloat16* rows, int64_t stride, const void* block, const void* second = nullptr) {
        tiles_.template load<ROWS>(rows, stride * sizeof(Bfloat16));
        times<SUM_LEFT, SUM_RIGHT>((const char*)block);
        if (two) times<SECOND_LEFT, SECOND_RIGHT>((const char*)second);
    }
    void store() {
        each([&](auto tile, float* at) { tiles_.template store<tile>(at, stride_); });
    }

   private:
    template <int tile>
    using Number = std::integral_constant<int, tile>;

    template <class Each>  // each(number of a tile, its place)
    void each(Each each) {
        each(Number<SUM_LEFT>{}, sums_), each(Number<SUM_RIGHT>{}, sums_ + TILE_ROWS);
        if (!two) return;
        each(Number<SECOND_LEFT>{}, sums_ + BLOCK);
        each(Number<SECOND_RIGHT>{}, sums_ + BLOCK + TILE_ROWS);
    }
    template <int left, int right>
    void times(const char* block) {
        constexpr int64_t STRIDE = BLOCK * 2 * sizeof(Bfloat16);
        tiles_.template load<COLUMNS>(block, STRIDE);
        tiles_.template multiply<left, ROWS, COLUMNS>();
        tiles_.template load<COLUMNS>(block + TILE_BYTES, STRIDE);
        tiles_.template multiply<right, ROWS, COLUMNS>();
    }

    Tiles& tiles_;
    float* const sums_;
    const int64_t stride_;
};

// Calls `each(first, count)` for up to so many of some rows after another, with tiles in shape for them.
template <class Tiles, class Each>
void by_tiles(Tiles& tiles, int64_t n, int64_t most, Way way, Each each) {
    for (int64_t i = 0; i < n; i += most) {
        const int64_t count = n - i < most ? n - i : most;
        tiles.shape(int(count), way);
        each(i, count);
    }
}

// Memory that is asked for while tiles multiply: so many bytes further on at every step.
struct TilesAhead {
    const char* at;
    int64_t each;

    void ask() {
        for (const char* end = at + each; at < end; at += TILE_BYTES) __builtin_prefetch(at, 0, 2);
    }
    static constexpr int64_t STEP = TILE_DEEP * BLOCK * sizeof(Bfloat16);  // the weights of a step
};

// Up to 16 rows [n, deep] against a block of weights [deep / 2, 32, 2]; sums [n, 32].
template <class Tiles>
void tiles_over(Tiles& tiles, const Bfloat16* weights, int64_t deep, const Bfloat16* rows,
                int64_t stride, float* sums, int64_t sum_stride, TilesAhead ahead) {
    SumTiles<Tiles> found(tiles, sums, sum_stride);
    found.zero();
    for (int64_t k = 0; k < deep; k += TILE_DEEP) {
        ahead.ask();
        found.add(rows + k, stride, weights + k * BLOCK);
    }
    found.store();
}

}  // namespace flat
