// gather.h: gather gather_back: elements by id along an axis, and sums back to where they came from. Inputs dense.
//
//   x [outer, n, inner], ids [outer, m, inner]:
//     gather:       y[o][j][c] = x[o][ids[o][j][c]][c]
//     gather_back:  y[o][ids[o][j][c]][c] += g[o][j][c], in the order of j
//
// An id outside 0..n-1 stops the run (Stop::index) with its position and value; its element is left out.
#pragma once
#include "walk.h"

namespace gradloom::GL_ISA {

struct GatherAxes {
  int64_t outer = 1, n, m, inner = 1;
};
// wide: the tensor that ids point into
inline GatherAxes gather_axes(const Tensor& wide, const Tensor& ids, int axis) {
  GatherAxes a;
  for (int i = 0; i < axis; i++) a.outer *= ids.shape[i];
  for (int i = axis + 1; i < ids.rank; i++) a.inner *= ids.shape[i];
  a.n = wide.shape[axis], a.m = ids.shape[axis];
  return a;
}

inline void gather_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = parts_for(static_cast<double>(call[1].size()), 32 * 1024);
}

// move(position of an id, place of its row, column) for each id of rows [begin, end) and columns `cols`
template <class Move>
inline void gather_each(const Call& call, const GatherAxes& a, int64_t begin, int64_t end, Range cols, Move&& move) {
  const int32_t* ids = call[1].as<const int32_t>();
  const uint64_t n = static_cast<uint64_t>(a.n);
  if (a.inner == 1) {
    for (int64_t at = begin; at < end; at++) {
      const int64_t id = ids[at];
      if (static_cast<uint64_t>(id) >= n) call.status->fail(Stop::index, at, id);
      else move(at, id, 0);
    }
    return;
  }
  for (int64_t r = begin; r < end; r++)
    for (int64_t c = cols.begin; c < cols.end; c++) {
      const int64_t at = r * a.inner + c, id = ids[at];
      if (static_cast<uint64_t>(id) >= n) call.status->fail(Stop::index, at, id);
      else move(at, id * a.inner, c);
    }
}

template <class T> inline void gather_run(const Call& call, int, int part, int parts, void*) {
  const GatherAxes a = gather_axes(call[0], call[1], static_cast<int>(call.attr_int(0)));
  T* y = call[2].as<T>();
  const Range rows = part_range(a.outer * a.m, part, parts);
  for (int64_t r = rows.begin, end; r < rows.end; r = end) {
    const int64_t o = r / a.m;
    end = (o + 1) * a.m < rows.end ? (o + 1) * a.m : rows.end;
    const T* from = call[0].as<const T>() + o * a.n * a.inner;
    gather_each(call, a, r, end, {0, a.inner}, [=](int64_t at, int64_t row, int64_t c) { y[at] = from[row + c]; });
  }
}

// Parts own positions of outer, or columns of inner where outer is short: no two parts write to one element.
struct GatherSplit {
  int parts;
  bool columns;
};
inline GatherSplit gather_split(const Call& call) {
  const GatherAxes a = gather_axes(call[2], call[1], static_cast<int>(call.attr_int(0)));
  const int most = static_cast<int>(parts_for(static_cast<double>(call[1].size() + call[2].size()), 32 * 1024));
  if (a.outer >= most || a.outer >= a.inner / 16) return {most, false};
  const int64_t fit = a.inner / 16;
  return {fit < most ? static_cast<int>(fit) : most, true};
}

inline void gather_back_plan(const Call& call, KernelPlan& plan) {
  plan.parts[0] = static_cast<uint32_t>(gather_split(call).parts);
}

inline void gather_back_run(const Call& call, int, int part, int parts, void*) {
  const GatherAxes a = gather_axes(call[2], call[1], static_cast<int>(call.attr_int(0)));
  const float* g = call[0].as<const float>();
  const bool by_columns = gather_split(call).columns;
  const Range lines = by_columns ? Range{0, a.outer} : part_range(a.outer, part, parts);
  const Range cols = by_columns ? part_range(a.inner, part, parts, 16) : Range{0, a.inner};
  for (int64_t o = lines.begin; o < lines.end; o++) {
    float* to = call[2].as<float>() + o * a.n * a.inner;
    if (!by_columns) std::memset(to, 0, static_cast<size_t>(a.n * a.inner) * sizeof(float));
    else for (int64_t i = 0; i < a.n; i++)
      for (int64_t c = cols.begin; c < cols.end; c++) to[i * a.inner + c] = 0;
    gather_each(call, a, o * a.m, (o + 1) * a.m, cols,
                [=](int64_t at, int64_t row, int64_t c) { to[row + c] += g[at]; });
  }
}

inline constexpr KernelRow kGatherRows[] = {
    {"gather", "f32_i32_f32", gather_plan, gather_run<float>},
    {"gather", "i32", gather_plan, gather_run<int32_t>},
    {"gather_back", "f32_i32_f32", gather_back_plan, gather_back_run},
};

}  // namespace gradloom::GL_ISA
