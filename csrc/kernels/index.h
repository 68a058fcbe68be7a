// index.h: rows gathered by ids, rows added back by ids, batches gathered from a data set and converted.
//
// An id outside 0..rows-1 stops the run (Stop::index) with its position and value; its row is left out. Inputs dense.
#pragma once
#include "rows.h"

namespace gradloom::GL_ISA {

constexpr int64_t kIgnored = -100;  // the label of a row that does not count

// ---- get_rows(table, ids) -> y = table[ids] -----------------------------------------------------------

inline int64_t row_elements(const Tensor& t) {
  int64_t n = 1;
  for (int i = 1; i < t.rank; i++) n *= t.shape[i];
  return n;
}

inline void get_rows_plan(const Call& call, KernelPlan& plan) {
  const double cost = static_cast<double>(call[1].size()) * static_cast<double>(row_elements(call[0]) + 16);
  plan.parts[0] = parts_for(cost, 128 * 1024);
}

inline void get_rows_run(const Call& call, int, int part, int parts, void*) {
  const float* table = call[0].as<const float>();
  const int32_t* ids = call[1].as<const int32_t>();
  float* y = call[2].as<float>();
  const int64_t width = row_elements(call[0]), rows = call[0].shape[0];
  const Range range = part_range(call[1].size(), part, parts);
  for (int64_t i = range.begin; i < range.end; i++) {
    const int64_t id = ids[i];
    if (id < 0 || id >= rows) {
      call.status->fail(Stop::index, i, id);
      continue;
    }
    if (width) std::memcpy(y + i * width, table + id * width, static_cast<size_t>(width) * sizeof(float));
  }
}

// ---- scatter_rows(g, ids; rows) -> y: row ids[i] of y is the sum of the g[i], added in the order of i ---------

// Parts own rows of y, or columns when the rows are few: nothing is shared, the order of addition is that of the ids.
struct ScatterSplit {
  int parts;
  bool columns;
};
inline ScatterSplit scatter_split(const Call& call) {
  const int64_t rows = call[2].shape[0], width = row_elements(call[2]);
  const double cost = static_cast<double>(rows) * static_cast<double>(width) + static_cast<double>(call[0].size());
  const int most = static_cast<int>(parts_for(cost, 128 * 1024));
  if (rows >= 16 * most) return {most, false};
  const int64_t fit = width / 64 < 1 ? 1 : width / 64;
  return {fit < most ? static_cast<int>(fit) : most, true};
}

inline void scatter_rows_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = static_cast<uint32_t>(scatter_split(call).parts);
}

inline void scatter_rows_run(const Call& call, int, int part, int parts, void*) {
  const float* g = call[0].as<const float>();
  const int32_t* ids = call[1].as<const int32_t>();
  float* y = call[2].as<float>();
  const int64_t rows = call[2].shape[0], width = row_elements(call[2]), count = call[1].size();
  const bool by_columns = scatter_split(call).columns;
  const Range mine = by_columns ? Range{0, rows} : part_range(rows, part, parts);
  const Range cols = by_columns ? part_range(width, part, parts, 16) : Range{0, width};
  const int64_t span = cols.end - cols.begin;
  if (span == width) {
    std::memset(y + mine.begin * width, 0, static_cast<size_t>((mine.end - mine.begin) * width) * sizeof(float));
  } else {
    for (int64_t r = 0; r < rows; r++)
      std::memset(y + r * width + cols.begin, 0, static_cast<size_t>(span) * sizeof(float));
  }
  for (int64_t i = 0; i < count; i++) {
    const int64_t id = ids[i];
    if (id < mine.begin || id >= mine.end) {
      if (part == 0 && (id < 0 || id >= rows)) call.status->fail(Stop::index, i, id);
      continue;
    }
    const float* from = g + i * width + cols.begin;
    float* to = y + id * width + cols.begin;
    row_each(span, [&](int64_t c, auto t) { row_store(to + c, row_load(to + c, t) + row_load(from + c, t), t); });
  }
}

// ---- take_batch(data, order, position; rows) -> y[i] = data[order[position + i]] -------------------------------

// One row of values, converted. Integers that f32 cannot hold exactly are rounded.
template <class From> inline void take_row_f32(const From* from, float* to, int64_t n) {
  for (int64_t c = 0; c < n; c++) to[c] = static_cast<float>(from[c]);
}
template <> inline void take_row_f32(const float* from, float* to, int64_t n) {
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}
template <> inline void take_row_f32(const uint8_t* from, float* to, int64_t n) {
  int64_t c = 0;
  for (; c + F::N <= n; c += F::N) load_u8(from + c).store(to + c);
  if (c < n) load_u8_n(from + c, static_cast<int>(n - c)).store_n(to + c, static_cast<int>(n - c));
}
template <> inline void take_row_f32(const int8_t* from, float* to, int64_t n) {
  int64_t c = 0;
  for (; c + F::N <= n; c += F::N) load_i8(from + c).store(to + c);
  if (c < n) load_i8_n(from + c, static_cast<int>(n - c)).store_n(to + c, static_cast<int>(n - c));
}
struct F16Bits {
  uint16_t bits;
};
struct Bf16Bits {
  uint16_t bits;
};
template <> inline void take_row_f32(const F16Bits* from, float* to, int64_t n) {
  const uint16_t* p = &from->bits;
  int64_t c = 0;
  for (; c + F::N <= n; c += F::N) load_f16(p + c).store(to + c);
  if (c < n) load_f16_n(p + c, static_cast<int>(n - c)).store_n(to + c, static_cast<int>(n - c));
}
template <> inline void take_row_f32(const Bf16Bits* from, float* to, int64_t n) {
  const uint16_t* p = &from->bits;
  int64_t c = 0;
  for (; c + F::N <= n; c += F::N) load_bf16(p + c).store(to + c);
  if (c < n) load_bf16_n(p + c, static_cast<int>(n - c)).store_n(to + c, static_cast<int>(n - c));
}

template <class From, class To> struct TakeRow;
template <class From> struct TakeRow<From, float> {
  static bool run(const From* from, float* to, int64_t n, int64_t&) {
    take_row_f32<From>(from, to, n);
    return true;
  }
};
template <class From> struct TakeRow<From, int32_t> {  // false when a value does not fit
  static bool run(const From* from, int32_t* to, int64_t n, int64_t& seen) {
    for (int64_t c = 0; c < n; c++) {
      to[c] = static_cast<int32_t>(from[c]);
      if (static_cast<int64_t>(to[c]) != static_cast<int64_t>(from[c])) {
        seen = static_cast<int64_t>(from[c]);
        return false;
      }
    }
    return true;
  }
};

inline void take_batch_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = parts_for(static_cast<double>(call[3].size()), 16 * 1024);
}

template <class From, class To> inline void take_batch_run(const Call& call, int, int part, int parts, void*) {
  const From* data = call[0].as<const From>();
  const int64_t* order = call[1].as<const int64_t>();
  const int64_t position = *call[2].as<const int64_t>(), rows = call[0].shape[0], known = call[1].size();
  To* y = call[3].as<To>();
  const int64_t width = row_elements(call[0]);
  const auto row_at = [&](int64_t i) -> int64_t {
    const int64_t at = position + i;
    if (at < 0 || at >= known) return -1;
    const int64_t id = order[at];
    return id >= 0 && id < rows ? id : -1;
  };
  const int64_t bytes = width * static_cast<int64_t>(sizeof(From));
  const int64_t ahead = bytes < 256 ? 0 : 4;  // rows asked for before they are needed; a core sees short ones by itself
  // Inlined by force: a call of what has no effect but on time is one that a compiler leaves out.
  const auto ask = [&](int64_t i) __attribute__((always_inline)) {
    const int64_t id = row_at(i);
    if (id < 0) return;
    const char* p = reinterpret_cast<const char*>(data + id * width);
    for (int64_t b = 0; b < bytes && b < 4096; b += 64) __builtin_prefetch(p + b);
    if (bytes) __builtin_prefetch(p + (bytes < 4096 ? bytes : 4096) - 1);
  };
  const Range range = part_range(call[3].shape[0], part, parts);
  for (int64_t i = range.begin; i < range.end && i < range.begin + ahead; i++) ask(i);
  for (int64_t i = range.begin; i < range.end; i++) {
    if (ahead && i + ahead < range.end) ask(i + ahead);
    const int64_t id = row_at(i), at = position + i;
    int64_t seen = 0;
    if (id < 0) call.status->fail(Stop::index, i, at >= 0 && at < known ? order[at] : at);
    else if (!TakeRow<From, To>::run(data + id * width, y + i * width, width, seen))
      call.status->fail(Stop::index, i, seen);
  }
}

inline constexpr KernelRow kIndexRows[] = {
    {"get_rows", "f32_i32_f32", get_rows_plan, get_rows_run},
    {"scatter_rows", "f32_i32_f32", scatter_rows_plan, scatter_rows_run},
    {"take_batch", "f32_i64_f32", take_batch_plan, take_batch_run<float, float>},
    {"take_batch", "f16_i64_f32", take_batch_plan, take_batch_run<F16Bits, float>},
    {"take_batch", "bf16_i64_f32", take_batch_plan, take_batch_run<Bf16Bits, float>},
    {"take_batch", "f64_i64_f32", take_batch_plan, take_batch_run<double, float>},
    {"take_batch", "u8_i64_f32", take_batch_plan, take_batch_run<uint8_t, float>},
    {"take_batch", "i8_i64_f32", take_batch_plan, take_batch_run<int8_t, float>},
    {"take_batch", "i32_i64_f32", take_batch_plan, take_batch_run<int32_t, float>},
    {"take_batch", "i64_f32", take_batch_plan, take_batch_run<int64_t, float>},
    {"take_batch", "u8_i64_i32", take_batch_plan, take_batch_run<uint8_t, int32_t>},
    {"take_batch", "i8_i64_i32", take_batch_plan, take_batch_run<int8_t, int32_t>},
    {"take_batch", "i32_i64_i32", take_batch_plan, take_batch_run<int32_t, int32_t>},
    {"take_batch", "i64_i32", take_batch_plan, take_batch_run<int64_t, int32_t>},
};

}  // namespace gradloom::GL_ISA
