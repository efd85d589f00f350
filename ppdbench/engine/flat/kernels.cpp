// Passes of a few rows through a stretch of a model, each a list of operations run by one call.
//
// A row's numbers never depend on how many rows there are, on what the others hold or on how many
// threads run: every sum has one order, and threads share out whole outputs.
#include <pthread.h>

#include <map>
#include <memory>
#include <new>

#include "attend.h"
#include "operations.h"
#include "packing.h"
#include "pool.h"
#include "products.h"
#include "rows.h"
#include "side_by_side.h"

namespace flat {

// Below so many numbers a job is done sooner than it is shared out.
constexpr int64_t WORTH_SHARING = 1 << 14;
// Rows whose sums a thread holds at once.
constexpr int64_t ROWS_OF_SUMS = 96;
// Rows of a product that is run for itself.
constexpr int64_t ROWS_ALONE = 4 * ROWS_OF_SUMS;
// Bytes of weights that a thread which waits asks for: a near cache holds them.
constexpr int64_t MOST_COMING = 1 << 17;
// Numbers among which one unit of work looks for the largest.
constexpr int64_t STRETCH = 4096;

// Rows are an odd number of the processor's lines apart: of widths that are powers of two they would
// else all want the same few places of the nearest cache.
inline int64_t odd_lines(int64_t numbers, int64_t size) {
    const int64_t each = LINE / size;
    return ((numbers + each - 1) / each | 1) * each;
}

// Rows of numbers that the operations of a program read and write: of those of the model.
struct Buffers {
    std::vector<int64_t> strides[2];  // of float32 and of bfloat16
    std::vector<Room> rooms;

    explicit Buffers(const int64_t* widths, int count) : rooms(count) {
        for (int i = 0; i < count; i++) {
            strides[0].push_back(odd_lines(widths[i], sizeof(float)));
            strides[1].push_back(odd_lines(widths[i], sizeof(Bfloat16)));
        }
    }
    // All but one of them, which nobody reads or writes.
    template <class T>
    bool reserve(int64_t rows, int32_t but) {
        for (size_t i = 0; i < rooms.size(); i++)
            if (int32_t(i) != but && !rooms[i].reserve(rows * strides[IS_NARROW<T>][i] * sizeof(T)))
                return false;
        return true;
    }
    template <class T>
    T* row(Columns columns, int64_t row) const {
        return rooms[columns.buffer].as<T>() + row * stride<T>(columns) + columns.first;
    }
    template <class T>
    int64_t stride(Columns columns) const {
        return strides[IS_NARROW<T>][columns.buffer];
    }
};

// Runs the operations of a program, each in one step or two. Steps that treat every row for itself
// are done row by row, as many as follow each other: a job of rows. T is the type of the model's
// numbers.
template <class T>
class Runner : public Work {
   public:
    int path = VECTORS_ONLY;
    // If few rows ask ahead (products.h): one or two, and more.
    bool few_ask[2] = {true, true};

    void choose_like(const Runner& other) {
        path = other.path;
        memcpy(few_ask, other.few_ask, sizeof few_ask);
    }

    // False where there is not enough memory.
    bool begin(const Run& run, int threads) {
        ops_ = run.ops, spans_ = run.spans, n_spans_ = run.n_spans;
        buffers_ = (Buffers*)run.buffers, pass_ = run.pass;
        span_ = 0, next_ = n_spans_ ? spans_[0].first : 0, second_ = false;
        parts_ = pass_->slots ? parts() : 0;  // passes that attend say where they store
        threads_ = threads, leaving_ = straight_out();
        return reserve();
    }

    int64_t next() override {
        by_rows_.clear();
        int64_t numbers = 0;
        while (find()) {
            if (!found_.run || found_.units == 0) {
                pass_over();
            } else if (found_.rows) {
                by_rows_.push_back(found_);
                numbers += found_.numbers;
                pass_over();
            } else if (!by_rows_.empty()) {
                if (const int64_t units = begin_rows(numbers)) return units;
                numbers = 0;
            } else {
                step_ = found_;
                pass_over();
                if (step_.numbers >= WORTH_SHARING && step_.units > 1) return step_.units;
                for (int64_t i = 0; i < step_.units; i++) unit(i, 0);
            }
        }
        return by_rows_.empty() ? 0 : begin_rows(numbers);
    }
    void unit(int64_t unit, int thread) override {
        if (by_rows_.empty()) return (this->*step_.run)(*step_.op, unit, thread);
        for (const Step& step : by_rows_) (this->*step.run)(*step.op, unit, thread);
    }
    int64_t at_once() const override { return by_rows_.empty() && step_.two ? 2 : 1; }
    void units(int64_t first, int64_t n, int thread) override {
        const int64_t end = first + n;
        if (at_once() == 2)
            for (; first + 2 <= end; first += 2) (this->*step_.two)(*step_.op, first, thread);
        Work::units(first, end - first, thread);
    }

    Coming coming(int thread) const override {
        Coming found;
        int i = next_;
        if (second_ && ops_[i].kind == ATTEND) i++;  // it has been read
        for (; i < spans_[span_].end; i++) {
            const Operation& op = ops_[i];
            if (op.kind == LINEAR || op.kind == GATED || op.kind == ATTEND) {
                op.kind == ATTEND ? expect_keys(found, op, thread) : expect_weights(found, op, thread);
                break;
            }
        }
        return found;
    }

   private:
    static constexpr bool NARROW = IS_NARROW<T>;

    // A step of an operation.
    using Runs = void (Runner::*)(const Operation& op, int64_t unit, int thread);
    struct Step {
        Runs run;
        int64_t units;
        int64_t numbers;     // that it works on: how much work it is
        bool rows = false;   // each unit is a row, which needs no other row's
        Runs two = nullptr;  // runs a unit and the next at once, where that takes less time
        const Operation* op = nullptr;
    };

    // Finds the step that is due; false at the end.
    bool find() {
        while (span_ < n_spans_ && next_ >= spans_[span_].end)
            if (++span_ < n_spans_) next_ = spans_[span_].first;
        if (span_ >= n_spans_) return false;
        const Operation& op = ops_[next_];
        found_ = second_ ? two(op) : one(op);
        found_.op = &op;
        return true;
    }
    void pass_over() {
        second_ = !second_ && two(ops_[next_]).run;
        if (!second_) next_++;
    }
    // The rows' number where they are worth sharing out; else does them all.
    int64_t begin_rows(int64_t numbers) {
        const int64_t n = pass_->rows;
        if (numbers >= WORTH_SHARING && n > 1) return n;
        for (int64_t i = 0; i < n; i++) unit(i, 0);
        by_rows_.clear();
        return 0;
    }

    // The first step of an operation, and the second where it has one.
    Step one(const Operation& op) const {
        const int64_t n = pass_->rows, rows = n * op.width;
        switch (op.kind) {
            case ENTER: return {&Runner::enter, n, rows, true};
            case LEAVE:
                if (leaving_) return {nullptr, 0, 0};
                return {&Runner::leave, n * stretches(op), rows};
            case LINEAR:
            case GATED:
                if constexpr (!NARROW) return {nullptr, 0, 0};
                if (has_products(op, FOR_TILES)) {
                    const int64_t units = sources(op) * side_by_side(op).units();
                    return {&Runner::lay_beside, units, n * op.products->in * sources(op)};
                }
                if (!narrows(op)) return {nullptr, 0, 0};
                return {&Runner::narrow, n, n * op.products->in * sources(op), true};
            case RMS_NORM: return {&Runner::norm, n, rows, true};
            case LAYER_NORM: return {&Runner::center, n, rows, true};
            case ROTATE: return {&Runner::turn, n, rows, true};
            case STORE: return {&Runner::keep, n, rows, true};
            case ATTEND: {
                const int64_t numbers = n * parts_ * PART * op.heads * op.head_dim / 4;
                return {&Runner::attend, attending(op).units(), numbers};
            }
            case ACT:
            case CAP:
            case XIELU: return {&Runner::simple, n, 4 * rows, true};
            default: return {&Runner::simple, n, rows, true};
        }
    }
    Step two(const Operation& op) const {
        const int64_t n = pass_->rows;
        switch (op.kind) {
            case LEAVE:
                if (!pass_->likeliest) return {nullptr, 0, 0};
                return {&Runner::settle, n, n * threads_, true};
            case LINEAR: {
                int64_t numbers = 0;
                for (int64_t i = 0; i < op.count; i++)
                    numbers += op.products[i].out * op.products[i].in;
                const Runs one = &op == leaving_ ? &Runner::linear_out<1> : &Runner::linear<1>;
                const Runs two = &op == leaving_ ? &Runner::linear_out<2> : &Runner::linear<2>;
                return {one, blocks_of(op), numbers, false, in_pairs(op) ? two : nullptr};
            }
            case GATED:
                return {&Runner::gated, blocks_of(op), 2 * op.products->out * op.products->in};
            case ATTEND:
                return {&Runner::merge, n, n * op.heads * op.head_dim * attending(op).parts_apart(), true};
            default: return {nullptr, 0, 0};
        }
    }

    // What will be read

    // The first weights that a thread multiplies by: of one stream, or of two.
    void expect_weights(Coming& coming, const Operation& op, int thread) const {
        const Product* product = op.products;
        int64_t unit = blocks_of(op) * thread / threads_;
        if (op.kind == GATED)
            return expect(coming, product[0], unit, 2), expect(coming, product[1], unit, 2);
        while (unit >= blocks(product->out)) unit -= blocks(product++->out);
        if (!in_pairs(op)) return expect(coming, *product, unit, 1);
        for (int i = 0; i < 2 && unit + i < blocks(product->out); i++)
            expect(coming, *product, block_of(op, *product, unit + i), 2);
    }
    void expect(Coming& coming, const Product& product, int64_t block, int64_t streams) const {
        const int64_t bytes = block_bytes(product), rest = (blocks(product.out) - block) * bytes;
        const int64_t most = MOST_COMING / streams;
        coming.add(block_at(product, block), rest < most ? rest : most);
    }
    void expect_keys(Coming& coming, const Operation& op, int thread) const {
        const Attending whole = attending(op);
        const int64_t apart = whole.parts_apart(), unit = whole.units() * thread / threads_;
        const KeysAndValues read = keys_and_values(*pass_, op, unit / apart / whole.row_blocks());
        for (const Rows* rows : {&read.keys, &read.more_keys, &read.values}) {
            const int64_t first = unit % apart * PART, rest = pass_->start - first;
            if (!rows->dim || rest <= 0) continue;
            coming.add(rows->of<T>(pass_->held(0, op.layer)) + first * rows->stride,
                       (rest < PART ? rest : PART) * rows->stride);
        }
    }

    // The product that the run ends with, if all that it makes goes out: then no buffer holds it.
    const Operation* straight_out() const {
        const Operation *last = nullptr, *before = nullptr;
        for_each([&](const Operation& op) { before = last, last = &op; });
        if (!before || last->kind != LEAVE || before->kind != LINEAR || before->count != 1)
            return nullptr;
        const Columns out = last->source, made = before->products->target;
        if (before->flags & ONTO || before->products->out != last->width ||
            out.buffer != made.buffer || out.first != made.first)
            return nullptr;
        bool used = false;
        for_each([&](const Operation& op) {
            if (&op == last) return;
            auto uses = [&](Columns columns) { used |= columns.buffer == out.buffer; };
            uses(op.source), uses(op.other), uses(op.target);
            if (op.kind != LINEAR && op.kind != GATED) return;
            for (int64_t i = 0; i < op.count; i++)
                if (&op != before) uses(op.products[i].target);
        });
        return used ? nullptr : before;
    }

    // Memory

    // What a thread needs for itself: sums of two blocks and weights that are unpacked, or keys,
    // values and what is gathered.
    static constexpr int64_t SUMS = 2 * ROWS_OF_SUMS * BLOCK;
    int64_t own_floats() const {
        int64_t most = SUMS;
        for_each([&](const Operation& op) {
            if (op.kind == LINEAR || op.kind == GATED)
                for (int64_t i = 0; i < op.count; i++) {
                    const int64_t floats = SUMS + UNPACKED_FLOATS;
                    if (op.products[i].form != PLAIN && floats > most) most = floats;
                }
            if (op.kind != ATTEND) return;
            const int64_t floats = floats_to_attend<T>(attending(op), path);
            most = floats > most ? floats : most;
        });
        return (most + TILE - 1) / TILE * TILE;
    }
    bool reserve() {
        int64_t deep = 0, gathered = 0, pairs = 0;
        for_each([&](const Operation& op) {
            if (op.kind == LINEAR || op.kind == GATED) {
                if (narrows(op) && narrow_stride(op) > deep) deep = narrow_stride(op);
                const int64_t beside = sources(op) * side_by_side(op).pairs();
                if (has_products(op, FOR_TILES) && beside > pairs) pairs = beside;
            }
            if (op.kind == ATTEND) {
                const int64_t floats = attending(op).gathered_floats();
                gathered = floats > gathered ? floats : gathered;
            }
        });
        own_ = own_floats();
        const int32_t but = leaving_ ? leaving_->products->target.buffer : -1;
        return buffers_->template reserve<T>(pass_->rows, but) &&
               room_.reserve(threads_ * own_ * sizeof(float)) &&
               narrow_room_.reserve(pass_->rows * deep * narrow_size()) &&
               pairs_room_.reserve(pairs * sizeof(uint32_t)) &&
               gathered_.reserve(gathered * sizeof(float)) && begin_peaks();
    }
    template <class Each>
    void for_each(Each each) const {
        for (int s = 0; s < n_spans_; s++)
            for (int i = spans_[s].first; i < spans_[s].end; i++) each(ops_[i]);
    }
    float* own(int thread) const { return room_.as<float>() + thread * own_; }
    T* row(Columns columns, int64_t row) const { return buffers_->template row<T>(columns, row); }
    int64_t stride(Columns columns) const { return buffers_->template stride<T>(columns); }

    // In and out

    void enter(const Operation& op, int64_t row, int) {
        T* to = this->row(op.target, row);
        if (pass_->tokens && pass_->in_blob) return look_up(pass_->tokens[row], to, op.width);
        const int64_t from = (pass_->tokens ? pass_->tokens[row] : row) * op.width;
        copy((const T*)pass_->source + from, to, op.width);
    }
    // The weights of one output of a blob.
    void look_up(int64_t output, T* to, int64_t width) const {
        const Layout layout(width, NARROW);
        for (int64_t k = 0; k < width; k++) to[k] = ((const T*)pass_->source)[layout.at(output, k)];
    }
    int64_t stretches(const Operation& op) const { return (op.width + STRETCH - 1) / STRETCH; }
    void leave(const Operation& op, int64_t unit, int thread) {
        const int64_t row = unit / stretches(op), first = unit % stretches(op) * STRETCH;
        const int64_t end = first + STRETCH < op.width ? first + STRETCH : op.width;
        const T* from = this->row(op.source, row);
        for (int64_t i = first; i < end; i += LANES)
            put_out(op, row, i, load_some(from + i, end - i), end - i, thread);
    }
    // Some numbers of a row, from the one that is numbered `at` on.
    void put_out(const Operation& op, int64_t row, int64_t at, Vec x, int64_t n, int thread) {
        x = store_some((T*)pass_->target + row * op.width + at, x, n);
        if (pass_->likeliest) peak(row, thread).take(x, at, n);
    }
    // The largest number of a row that a thread has seen.
    Peak& peak(int64_t row, int thread) const {
        return peaks_.as<Peak>()[thread * pass_->rows + row];
    }
    bool begin_peaks() {
        if (!pass_->likeliest) return true;
        if (!peaks_.reserve(threads_ * pass_->rows * sizeof(Peak))) return false;
        for (int64_t i = 0; i < threads_ * pass_->rows; i++) peaks_.as<Peak>()[i] = Peak{};
        return true;
    }
    void settle(const Operation&, int64_t row, int) {
        Peak most;
        for (int i = 0; i < threads_; i++) most.take(peak(row, i));
        pass_->likeliest[row] = most.at;
        pass_->peaks[row] = most.value;
    }

    // Products

    // The parts of the source that products read: one for all, or each one of its own.
    static int64_t sources(const Operation& op) { return op.flags & APART ? op.count : 1; }
    static int64_t source_of(const Operation& op, const Product& product) {
        return op.flags & APART ? &product - op.products : 0;
    }
    // True if products cannot read rows as they are: they multiply wider numbers, or what they read is
    // no whole tiles.
    bool narrows(const Operation& op) const {
        if (!NARROW) return false;
        bool in_tiles = op.products->in % TILE_DEEP == 0;
        for (int64_t i = 0; i < op.count; i++) in_tiles &= op.products[i].first % TILE_DEEP == 0;
        return widens() || !in_tiles || op.source.first % TILE_DEEP;
    }
    bool widens() const { return path == VECTORS_ONLY; }
    int64_t narrow_size() const { return widens() ? sizeof(float) : sizeof(Bfloat16); }
    void narrow(const Operation& op, int64_t row, int) {
        if constexpr (NARROW) widens() ? narrow_as<float>(op, row) : narrow_as<Bfloat16>(op, row);
    }
    int64_t narrow_stride(const Operation& op) const {
        return odd_lines(whole_tiles(op.products->in) * sources(op), narrow_size());
    }
    template <class To>
    void narrow_as(const Operation& op, int64_t row) {
        const int64_t in = op.products->in, deep = whole_tiles(in), n = sources(op);
        for (int64_t i = 0; i < n; i++)
            narrowed(this->row(op.source, row) + op.products[i].first,
                     narrow_room_.as<To>() + row * narrow_stride(op) + i * deep, in, deep);
    }
    // A group of inputs of some rows, laid side by side; and of these rows for themselves besides
    // where there are products that read them so.
    void lay_beside(const Operation& op, int64_t unit, int thread) {
        const SideBySide lie = side_by_side(op);
        const int64_t part = unit / lie.units(), first = lie.first_row(unit % lie.units());
        const int64_t input = lie.first_input(unit % lie.units());
        const int64_t rest = op.products->in - input;
        auto row = [&](int64_t i) {
            return this->row(op.source, first + i) + op.products[part].first + input;
        };
        if constexpr (NARROW)
            lie.lay(row, first, input, rest, pairs_room_.as<uint32_t>() + part * lie.pairs());
        if (has_products(op, 0) && narrows(op) && part == 0 && input == 0)
            for (int64_t i = 0; i < lie.rows_from(first); i++) narrow(op, first + i, thread);
    }
    // True if weights of products are stored for tiles, or otherwise.
    static bool has_products(const Operation& op, int64_t for_tiles) {
        for (int64_t i = 0; i < op.count; i++)
            if ((op.products[i].form & FOR_TILES) == for_tiles) return true;
        return false;
    }
    // How rows lie that are multiplied by weights stored for tiles.
    SideBySide side_by_side(const Operation& op) const {
        return {pass_->rows, whole_tiles(op.products->in)};
    }
    void multiply_by_outputs(const Operation& op, const Product& product, int64_t block,
                             int64_t first, int64_t n, float* sums, int thread) {
        const SideBySide lie = side_by_side(op);
        const int form = int(product.form);
        const uint32_t* groups =
            (const uint32_t*)product.blob + block * lie.deep / GROUP * group_words(form);
        const uint32_t* pairs = pairs_room_.as<uint32_t>() +
                                source_of(op, product) * lie.pairs() + lie.at(first);
        products_by_outputs(form, path, groups, pairs, lie, n, sums, own(thread) + SUMS);
    }
    // Units of an operation that multiplies: those of a gate and what goes through it are one.
    static int64_t blocks_of(const Operation& op) {
        int64_t n = 0;
        for (int64_t i = 0; i < (op.kind == GATED ? 1 : op.count); i++) n += blocks(op.products[i].out);
        return n;
    }
    int64_t block_bytes(const Product& product) const {
        if (product.form == PLAIN) return BLOCK * deep(product) * sizeof(T);
        return deep(product) / GROUP * group_words(int(product.form)) * sizeof(uint32_t);
    }
    const char* block_at(const Product& product, int64_t block) const {
        return (const char*)product.blob + block * block_bytes(product);
    }
    bool asks(int64_t n) const { return few_ask[n > 2]; }
    int64_t deep(const Product& product) const {
        return NARROW ? whole_tiles(product.in) : product.in;
    }
    // The rows that a product reads, from one on; they are `apart` numbers from each other.
    const void* rows_of(const Operation& op, const Product& product, int64_t first,
                        int64_t& apart) const {
        if (!narrows(op)) {
            apart = stride(op.source);
            return row(op.source, first) + product.first;
        }
        apart = narrow_stride(op);
        const int64_t number = first * apart + source_of(op, product) * deep(product);
        return narrow_room_.as<char>() + number * narrow_size();
    }
    // A block of a product that is not stored otherwise.
    Block plain_block(const Product& product, int64_t block, float* sums) const {
        return {block_at(product, block), sums};
    }
    // Sums of some rows with a block of a product. Not inlined, so that all is built sooner.
    __attribute__((noinline)) void multiply(const Operation& op, const Product& product,
                                            int64_t block, int64_t first, int64_t n, float* sums,
                                            int thread) {
        if (product.form & FOR_TILES)
            return multiply_by_outputs(op, product, block, first, n, sums, thread);
        int64_t apart;
        const void* rows = rows_of(op, product, first, apart);
        if (product.form == PLAIN)
            return products(path, NARROW, asks(n), plain_block(product, block, sums),
                            deep(product), rows, apart, n);
        stored_products(int(product.form), path, NARROW, (const uint32_t*)block_at(product, block),
                        deep(product), rows, apart, n, sums, own(thread) + SUMS);
    }
    // The same with a block of another product, or of the same, the sums with which are `others`.
    void multiply_two(const Operation& op, const Product& one, int64_t block, const Product& two,
                      int64_t other, int64_t first, int64_t n, float* sums, float* others,
                      int thread) {
        int64_t apart;
        const void* rows = rows_of(op, one, first, apart);
        if (takes_two(path, NARROW, n) && one.form == PLAIN && two.form == PLAIN &&
            one.in == two.in && rows == rows_of(op, two, first, apart))
            return products_of_two(path, NARROW, asks(n), plain_block(one, block, sums),
                                   plain_block(two, other, others), deep(one), rows, apart, n);
        multiply(op, one, block, first, n, sums, thread);
        multiply(op, two, other, first, n, others, thread);
    }
    // The sum at a place of a block, with its bias.
    static Vec with_bias(const Product& product, const float* sums, int64_t block, int64_t at) {
        const Vec sum = load(sums + at);
        return product.bias ? sum + load(product.bias + block * BLOCK + at) : sum;
    }
    template <class Each>  // each(first row, how many, their sums with a block and with another)
    void by_rows(int thread, Each each) {
        for (int64_t first = 0; first < pass_->rows; first += ROWS_OF_SUMS) {
            const int64_t rest = pass_->rows - first;
            each(first, rest < ROWS_OF_SUMS ? rest : ROWS_OF_SUMS, own(thread),
                 own(thread) + ROWS_OF_SUMS * BLOCK);
        }
    }
    // Calls `each(at, n)` for every vector of a block of which so many numbers are `left`.
    template <class Each>
    static void by_block(int64_t left, Each each) {
        if (left < BLOCK) return by_vectors(left, each);
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) each(j * LANES, LANES);
    }
    // True if a thread takes two blocks of one product at once.
    bool in_pairs(const Operation& op) const {
        bool plain = true;
        for (int64_t i = 0; i < op.count; i++) plain &= op.products[i].form == PLAIN;
        return plain && takes_two(path, NARROW, pass_->rows);
    }
    // The block that a unit of a product is. Of two at once each comes from a half of its own, so that what a
    // thread reads are two streams that go on from unit to unit.
    int64_t block_of(const Operation& op, const Product& product, int64_t unit) const {
        if (!in_pairs(op)) return unit;
        const int64_t half = (blocks(product.out) + 1) / 2;
        return unit % 2 * half + unit / 2;
    }
    // Hands out the numbers that one unit of a product makes, or it and the next: `row(i)` is what takes
    // those of a row, each vector `(at, x, n)`.
    template <int count, class Row>
    void linear_by(const Operation& op, const Product& product, int64_t unit, int thread, Row row) {
        const int64_t one = block_of(op, product, unit), two = block_of(op, product, unit + 1);
        by_rows(thread, [&](int64_t first, int64_t n, float* sums, float* others) {
            if (count == 2)
                multiply_two(op, product, one, product, two, first, n, sums, others, thread);
            else
                multiply(op, product, one, first, n, sums, thread);
            for (int made = 0; made < count; made++) {
                const int64_t block = made ? two : one, from = block * BLOCK;
                for (int64_t i = 0; i < n; i++) {
                    const float* found = (made ? others : sums) + i * BLOCK;
                    const auto put = row(first + i);
                    by_block(product.out - from, [&](int64_t j, int64_t some) {
                        put(from + j, with_bias(product, found, block, j), some);
                    });
                }
            }
        });
    }
    template <int count>
    void linear(const Operation& op, int64_t unit, int thread) {
        const Product* product = op.products;
        int64_t own = unit;
        while (own >= blocks(product->out)) own -= blocks(product++->out);
        if (own + count > blocks(product->out))  // the next is of another product
            return linear<1>(op, unit, thread), linear<1>(op, unit + 1, thread);
        if (!(op.flags & ONTO))
            return linear_by<count>(op, *product, own, thread, [&](int64_t row) {
                T* to = this->row(product->target, row);
                return [=](int64_t at, Vec x, int64_t n) { store_some(to + at, x, n); };
            });
        linear_by<count>(op, *product, own, thread, [&](int64_t row) {
            T* to = this->row(product->target, row);
            const T* onto = this->row(op.other, row);
            return [=](int64_t at, Vec x, int64_t n) {
                store_some(to + at, load_some(onto + at, n) + held_as<T>(x), n);
            };
        });
    }
    template <int count>
    void linear_out(const Operation& op, int64_t unit, int thread) {
        const Operation& leaving = ops_[spans_[n_spans_ - 1].end - 1];
        linear_by<count>(op, *op.products, unit, thread, [&](int64_t row) {
            return [&, row](int64_t at, Vec x, int64_t n) {
                put_out(leaving, row, at, x, n, thread);
            };
        });
    }
    void gated(const Operation& op, int64_t unit, int thread) {
        with_activation(op.act, [&](auto which) { this->gated_by<which>(op, unit, thread); });
    }
    template <int which>
    void gated_by(const Operation& op, int64_t unit, int thread) {
        const Product &gate = op.products[0], &up = op.products[1];
        const int64_t from = unit * BLOCK;
        by_rows(thread, [&](int64_t first, int64_t n, float* sums, float* others) {
            multiply_two(op, gate, unit, up, unit, first, n, sums, others, thread);
            for (int64_t i = 0; i < n; i++) {
                T* to = row(gate.target, first + i) + from;
                by_block(gate.out - from, [&](int64_t j, int64_t some) {
                    const Vec x = held_as<T>(with_bias(gate, sums + i * BLOCK, unit, j));
                    const Vec y = held_as<T>(with_bias(up, others + i * BLOCK, unit, j));
                    store_some(to + j, held_as<T>(activated<which>(x)) * y, some);
                });
            }
        });
    }

    // Rows for themselves

    void norm(const Operation& op, int64_t row, int) {
        take_over(this->row(op.target, row), op.width);
        for (int64_t i = 0; i < op.width; i += op.count)
            rms_norm(this->row(op.source, row) + i, this->row(op.target, row) + i, op.count,
                     op.weight, op.value, op.flags & PLUS_ONE, op.flags & ROUND_FIRST);
    }
    void center(const Operation& op, int64_t row, int) {
        layer_norm(this->row(op.source, row), this->row(op.target, row), op.width, op.weight,
                   op.bias, op.value);
    }
    void turn(const Operation& op, int64_t row, int) {
        const int64_t width = op.rotary_dim, at = pass_->turned(row) * width;
        take_over(this->row(op.target, row), op.heads * op.head_dim);
        auto way = op.flags & NEIGHBOURS ? rotate_neighbours<T> : rotate<T>;
        for (int64_t i = 0; i < op.heads; i++)
            way(this->row(op.target, row) + i * op.head_dim, width, pass_->cos[op.turn] + at,
                pass_->sin[op.turn] + at, op.flags & ROUND_FIRST);
    }
    void keep(const Operation& op, int64_t row, int) {
        if (pass_->slots[row] < 0) return;  // its keys and values are there already
        const int64_t cache = pass_->held(row, op.layer), width = pass_->widths[op.layer];
        auto put = [&](Columns from, void* const* caches, int64_t head, int64_t dim) {
            const int64_t at = (head * pass_->capacity + pass_->slots[row]) * width;
            copy(this->row(from, row) + head * dim, (T*)caches[cache] + at, dim);
        };
        for (int64_t i = 0; i < op.heads; i++) {
            put(op.source, pass_->keys, i, op.head_dim);
            put(op.other, pass_->values, i, op.value_dim);
        }
    }
    void simple(const Operation& op, int64_t row, int) {
        const T* x = this->row(op.source, row);
        T* out = this->row(op.target, row);
        const int64_t width = op.width;
        switch (op.kind) {
            case ACT:
                return act(x, op.flags & TIMES ? this->row(op.other, row) : nullptr, out, width,
                           op.act);
            case ADD: {
                const T* y = this->row(op.other, row);
                return by_vectors(width, [&](int64_t i, int64_t n) {
                    store_some(out + i, load_some(x + i, n) + load_some(y + i, n), n);
                });
            }
            case COPY: return copy(x, out, width);
            case PICK:
                for (int64_t head = 0; head < op.heads; head++)
                    for (int64_t i = 0; i < op.count; i++)
                        out[head * op.head_dim + i] = x[op.order[head * op.count + i]];
                return;
            case CAP: return cap(x, out, width, op.value);
            case XIELU: {
                const float* by = op.weight;
                return by_vectors(width, [&](int64_t i, int64_t n) {
                    Vec v = xielu(load_some(x + i, n), by[0], by[1], by[2]);
                    store_some(out + i, v, n);
                });
            }
            case SCALE:
                return by_vectors(width, [&](int64_t i, int64_t n) {
                    Vec v = load_some(x + i, n) * op.value;
                    if (op.weight) v = v * load_some(op.weight + i, n);
                    store_some(out + i, v, n);
                });
            case MIX: {
                const T* by = this->row(op.other, row);
                for (int64_t part = 0; part < op.heads; part++, by += op.count, out += width)
                    mix(x, op.count, by, out, width);
                return;
            }
            case CUT: return cut(x, out, width, op.value);
            case CLIP:
                return by_vectors(width, [&](int64_t i, int64_t n) {
                    Vec v = clipped(load_some(x + i, n), op.value);
                    store_some(out + i, v, n);
                });
        }
    }

    // Attention

    int64_t parts() const {
        int64_t longest = 0;
        for (int64_t i = 0; i < pass_->rows; i++) {
            const int64_t end = sight(*pass_, i, 0, 0).end;
            longest = end > longest ? end : longest;
        }
        return (longest + PART - 1) / PART;
    }
    Attending attending(const Operation& op) const {
        return {*pass_, op, parts_, threads_, gathered_.as<float>()};
    }
    void attend(const Operation& op, int64_t unit, int thread) {
        flat::attend(attending(op), path, unit, row(op.source, 0), stride(op.source), own(thread));
    }
    void merge(const Operation& op, int64_t row, int) {
        const int64_t dim = op.value_dim;
        const Attending whole = attending(op);
        take_over(this->row(op.target, row), op.heads * dim);
        const Sight seen = sight(*pass_, row, 0, op.window);
        const int64_t first = whole.is_apart() ? seen.first_part() : 0;
        const int64_t end = whole.is_apart() ? seen.end_part() : 1;
        for (int64_t head = 0; head < op.heads; head++) {
            Gathered all_parts = whole.gathered(first, row, head);
            for (int64_t p = first + 1; p < end; p++) join(all_parts, whole.gathered(p, row, head), dim);
            float total = all_parts.total;
            if (op.bias) total += exp(all(op.bias[head] - all_parts.peak))[0];
            T* out = this->row(op.target, row) + head * dim;
            by_vectors(dim, [&](int64_t i, int64_t n) {
                store_some(out + i, load_some(all_parts.values + i, n) / total, n);
            });
        }
    }

    const Operation* ops_ = nullptr;
    const Span* spans_ = nullptr;
    int n_spans_ = 0, span_ = 0, next_ = 0, threads_ = 1;
    int64_t parts_ = 0;  // of the longest list
    bool second_ = false;
    Buffers* buffers_ = nullptr;
    const Pass* pass_ = nullptr;
    const Operation* leaving_ = nullptr;  // see `straight_out`
    Step found_{}, step_{};
    std::vector<Step> by_rows_;  // the steps of a job of rows; none where it is another job
    int64_t own_ = 0;
    Room room_, narrow_room_, pairs_room_, gathered_, peaks_;
};

}  // namespace flat

using flat::Bfloat16;

namespace {

// All that threads share. A child process has none of its parent's threads and starts its own.
struct Shared {
    std::mutex one_at_a_time;
    std::unique_ptr<flat::Pool> pool;
    std::vector<int> own;  // the processor of each thread, or none
    flat::Runner<float> wide;
    flat::Runner<Bfloat16> narrow;
    std::map<std::pair<int64_t, int64_t>, flat::Buffers> alone;  // of products without a program

    flat::Buffers& buffers(int64_t in, int64_t out) {
        const int64_t widths[] = {in, out};
        return alone.try_emplace({in, out}, widths, 2).first->second;
    }
    flat::Pool& threads(int n) {
        if (n > flat::MOST_THREADS) n = flat::MOST_THREADS;
        if (n < 1) n = 1;
        if (!pool || pool->asked() != n) {
            pool.reset();
            pool.reset(new flat::Pool(n, flat::ProcessorTiles::release, own));
        }
        return *pool;
    }
    // False where there is not enough memory.
    bool run(const flat::Run& run, flat::Pool& by) {
        return run.narrow ? run_by(narrow, run, by) : run_by(wide, run, by);
    }

   private:
    template <class Runner>
    static bool run_by(Runner& runner, const flat::Run& run, flat::Pool& by) {
        if (!runner.begin(run, by.threads())) return false;
        by.run(runner);
        return true;
    }
};
Shared* shared = nullptr;

void begin_anew() {
    // What the parent left behind is in a state that nobody knows: it is not even given back.
    const Shared& before = *shared;
    shared = new Shared;
    shared->own = before.own;
    shared->wide.choose_like(before.wide), shared->narrow.choose_like(before.narrow);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Called once. What a library that was built for other structures would get wrong.
void flat_start(int64_t* sizes) {
    if (!shared) {
        shared = new Shared;
        pthread_atfork(nullptr, nullptr, begin_anew);
    }
    sizes[0] = sizeof(flat::Operation), sizes[1] = sizeof(flat::Product);
    sizes[2] = sizeof(flat::Pass), sizes[3] = sizeof(flat::Run), sizes[4] = flat::KINDS;
}

// The ways to multiply bfloat16 numbers that this processor has, as bits.
int flat_paths() {
    return flat::tiles_granted() ? flat::BUILT : flat::BUILT & ~(1 << flat::TILES);
}
void flat_use(int path) { shared->narrow.path = path; }
void flat_ask(int narrow, int two, int more) {
    bool(&asks)[2] = narrow ? shared->narrow.few_ask : shared->wide.few_ask;
    asks[0] = two, asks[1] = more;
}
// From the next time on that threads begin, the processor of each.
void flat_place(const int32_t* own, int count) { shared->own.assign(own, own + count); }
int flat_lanes() { return flat::LANES; }

// The numbers of a blob.
int64_t flat_blob_numbers(int64_t out, int64_t in, int narrow) {
    return flat::blocks(out) * flat::BLOCK * flat::Layout(in, narrow).deep;
}

// `how` is one of Meeting. False if a comparison finds a difference.
int flat_pack(void* blob, void* rows, int64_t out, int64_t in, int64_t row_step, int64_t step,
              int narrow, int how, int threads) {
    std::lock_guard<std::mutex> guard(shared->one_at_a_time);
    return flat::pack(blob, rows, out, in, row_step, step, narrow, how, shared->threads(threads));
}

// The same to its blob in the memory of a weight, whose rows are gone then, with the comparison: false
// if it finds a difference. -1 where there is not enough memory, and all is as it was.
int flat_pack_in_place(void* rows, int64_t out, int64_t in, int narrow, int threads) {
    std::lock_guard<std::mutex> guard(shared->one_at_a_time);
    return flat::pack_in_place(rows, out, in, narrow, shared->threads(threads));
}

// The sum of some numbers.
double flat_sum(const float* from, int64_t n, int threads) {
    std::lock_guard<std::mutex> guard(shared->one_at_a_time);
    return flat::added_up(from, n, shared->threads(threads));
}

void* flat_buffers(const int64_t* widths, int count) {
    return new (std::nothrow) flat::Buffers(widths, count);
}
void flat_free(void* buffers) { delete (flat::Buffers*)buffers; }

// Some runs, one after another. 0 where there is not enough memory, -1 where a token has no row.
int flat_run(const flat::Run* runs, int count, int threads) {
    std::lock_guard<std::mutex> guard(shared->one_at_a_time);
    auto& pool = shared->threads(threads);
    for (int i = 0; i < count; i++) {
        if (!runs[i].pass->has_tokens()) return -1;
        if (!shared->run(runs[i], pool)) return 0;
    }
    return 1;
}

// One product for itself, some rows at a time: of any number. False where memory is short.
int flat_linear(const flat::Product* product, int narrow, const void* source, void* target,
                int64_t rows, int threads) {
    using namespace flat;
    std::lock_guard<std::mutex> guard(shared->one_at_a_time);
    auto& pool = shared->threads(threads);
    Operation ops[3] = {};
    ops[0].kind = ENTER, ops[1].kind = LINEAR, ops[2].kind = LEAVE;
    ops[0].width = product->in, ops[1].count = 1, ops[2].width = product->out;
    ops[1].products = product;
    ops[2].source = product->target;
    const Span span = {0, 3};
    const int64_t size = narrow ? sizeof(Bfloat16) : sizeof(float);
    for (int64_t first = 0; first < rows; first += ROWS_ALONE) {
        Pass pass = {};
        pass.rows = rows - first < ROWS_ALONE ? rows - first : ROWS_ALONE;
        pass.source = (const char*)source + first * product->in * size;
        pass.target = (char*)target + first * product->out * size;
        const Run run = {&shared->buffers(product->in, product->out), ops, &span, 1, narrow, &pass};
        if (!shared->run(run, pool)) return 0;
    }
    return 1;
}

}  // extern "C"
#pragma GCC visibility pop
