// What packing.h says, and the sum of some numbers.
#include "packing.h"

#include "rows.h"

namespace flat {

namespace {

// Brings the rows of a weight and its blob together; some blocks of outputs by each thread.
template <class T, int HOW>
class Packing : public OneJob {
   public:
    Packing(T* blob, T* rows, int64_t out, int64_t in, int64_t row_step, int64_t step)
        : OneJob(blocks(out)), blob_(blob), rows_(rows), out_(out), row_step_(row_step),
          step_(step), layout_(in, sizeof(T) == 2) {}
    void unit(int64_t unit, int) override {
        const int64_t first = unit * BLOCK;
        const int64_t end = first + BLOCK < out_ ? first + BLOCK : out_;
        uint32_t differ = 0;
        for (int64_t k = step_ == 1 ? words(first, end, differ) : 0; k < layout_.in; k++)
            for (int64_t out = first; out < end; out++)
                differ |= meet<sizeof(T)>(blob_ + layout_.at(out, k), row(out) + k * step_);
        if (differ) same_.store(false);
    }
    bool same() const { return same_.load(); }

   private:
    static constexpr int64_t WORD = 4;

    // Numbers of 4 bytes lie side by side in rows and in the blob, where the next ones of their
    // row are a block further on: squares of them at once. The inputs that were met.
    int64_t words(int64_t first, int64_t end, uint32_t& differ) {
        constexpr int64_t each = WORD / sizeof(T) * LANES;
        int64_t k = 0;
        for (; k + each <= layout_.in; k += each) {
            int64_t out = first;
            for (; out + LANES <= end; out += LANES) differ |= square(out, k);
            for (; out < end; out++) {
                char *there = (char*)(blob_ + layout_.at(out, k)), *here = (char*)(row(out) + k);
                for (int64_t i = 0; i < LANES; i++)
                    differ |= meet<WORD>(there + i * WORD * BLOCK, here + i * WORD);
            }
        }
        return k;
    }
    // As many words of as many rows: what is a row here is a column there.
    uint32_t square(int64_t first, int64_t k) {
        auto there = [&](int64_t i) {
            return (float*)(blob_ + layout_.at(first, k)) + i * BLOCK;
        };
        auto here = [&](int64_t i) { return (float*)(row(first + i) + k); };
        Vec held[LANES];
        Ints differ{};
        for (int i = 0; i < LANES; i++)
            held[i] = load(HOW == TO_ROWS ? there(i) : here(i));
        transpose(held);
        for (int i = 0; i < LANES; i++) {
            if (HOW == TO_BLOB) store(there(i), held[i]);
            if (HOW == TO_ROWS) store(here(i), held[i]);
            if (HOW == COMPARE) differ |= as_ints(held[i]) ^ as_ints(load(there(i)));
        }
        uint32_t any = 0;
        for (int i = 0; i < LANES; i++) any |= uint32_t(differ[i]);
        return any;
    }
    // The bits that differ, of those that are compared.
    template <int64_t BYTES>
    static uint32_t meet(void* there, void* here) {
        if (HOW == TO_BLOB) memcpy(there, here, BYTES);
        if (HOW == TO_ROWS) memcpy(here, there, BYTES);
        uint32_t one = 0, other = 0;
        if (HOW == COMPARE) memcpy(&one, there, BYTES), memcpy(&other, here, BYTES);
        return one ^ other;
    }
    T* row(int64_t out) const { return rows_ + out * row_step_; }

    T *blob_, *rows_;
    int64_t out_, row_step_, step_;
    std::atomic<bool> same_{true};
    Layout layout_;
};

// Lays a weight of whole blocks out where it lies, each block by itself, and compares what came of it
// with what was there.
template <class T>
class PackingInPlace : public OneJob {
   public:
    PackingInPlace(T* rows, int64_t out, int64_t in, int threads)
        : OneJob(out / BLOCK), rows_(rows), in_(in), rooms_(threads) {}
    // False where there is not enough memory.
    bool reserve() {
        for (Room& room : rooms_)
            if (!room.reserve(block() * sizeof(T))) return false;
        return true;
    }
    void unit(int64_t unit, int thread) override {
        T *there = rows_ + unit * block(), *was = rooms_[thread].as<T>();
        memcpy(was, there, block() * sizeof(T));
        Packing<T, TO_BLOB>(there, was, BLOCK, in_, in_, 1).unit(0, 0);
        Packing<T, COMPARE> compared(there, was, BLOCK, in_, in_, 1);
        compared.unit(0, 0);
        if (!compared.same()) same_.store(false);
    }
    bool same() const { return same_.load(); }

   private:
    int64_t block() const { return BLOCK * in_; }

    T* const rows_;
    const int64_t in_;
    std::vector<Room> rooms_;
    std::atomic<bool> same_{true};
};

// Adds numbers up, which takes what reading them does: each thread reads two streams, as a product of one
// row does.
class Reading : public OneJob {
   public:
    Reading(const float* from, int64_t n)
        : OneJob((n + PIECE - 1) / PIECE), from_(from), n_(n) {}
    void unit(int64_t unit, int) override {
        const float* from = from_ + unit * PIECE;
        const int64_t n = n_ - unit * PIECE < PIECE ? n_ - unit * PIECE : PIECE;
        const int64_t half = n / (4 * LANES) * 2 * LANES;
        Vec sums[4] = {};
        for (int64_t i = 0; i < half; i += 2 * LANES)
            for (int j = 0; j < 4; j++)
                sums[j] = sums[j] + load(from + i + j / 2 * half + j % 2 * LANES);
        by_vectors(n - 2 * half, [&](int64_t i, int64_t some) {
            sums[0] = sums[0] + load_some(from + 2 * half + i, some);
        });
        std::lock_guard<std::mutex> guard(mutex_);
        total_ += sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
    double total() const { return total_; }

   private:
    static constexpr int64_t PIECE = 1 << 16;

    const float* const from_;
    const int64_t n_;
    std::mutex mutex_;
    double total_ = 0;
};

template <class T>
int meet_in_place(void* rows, int64_t out, int64_t in, Pool& pool) {
    PackingInPlace<T> packing((T*)rows, out, in, pool.threads());
    if (!packing.reserve()) return -1;
    pool.run(packing);
    return packing.same();
}

template <class T, int HOW>
bool meet_by(void* blob, void* rows, int64_t out, int64_t in, int64_t row_step, int64_t step,
             Pool& pool) {
    Packing<T, HOW> packing((T*)blob, (T*)rows, out, in, row_step, step);
    pool.run(packing);
    return packing.same();
}

template <class T>
constexpr bool (*MEETS[MEETINGS])(void*, void*, int64_t, int64_t, int64_t, int64_t, Pool&) = {
    meet_by<T, TO_BLOB>, meet_by<T, TO_ROWS>, meet_by<T, COMPARE>};

}  // namespace

bool pack(void* blob, void* rows, int64_t out, int64_t in, int64_t row_step, int64_t step,
          bool narrow, int how, Pool& pool) {
    auto meet = narrow ? MEETS<Bfloat16>[how] : MEETS<float>[how];
    return meet(blob, rows, out, in, row_step, step, pool);
}
int pack_in_place(void* rows, int64_t out, int64_t in, bool narrow, Pool& pool) {
    return (narrow ? meet_in_place<Bfloat16> : meet_in_place<float>)(rows, out, in, pool);
}
double added_up(const float* from, int64_t n, Pool& pool) {
    Reading reading(from, n);
    pool.run(reading);
    return reading.total();
}

}  // namespace flat
