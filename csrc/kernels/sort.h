// sort.h: argsort: positions of the first `count` elements in sorted order along an axis of any strided view.
//
//   for each line:  word[i] = key(x[i]) << 32 | i, all different: any sort of them is a stable sort of the elements
//     few of many elements are kept:  a heap of the `count` smallest words, taken apart from its top
//     short lines:                    sorted by insertion
//     else:                           four passes over the bytes of the keys, each in counts, offsets, moves
//
// Keys are whole numbers in the order of the elements: 0 and -0 have one key, all NaN have the largest. Descending
// order inverts the keys.
#pragma once
#include "walk.h"

namespace gradloom::GL_ISA {

constexpr int64_t kSortShort = 48;
constexpr int kSortDigits = 256;

GL_INLINE uint32_t sort_key(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0xffffffffu;
  if ((bits & 0x7fffffffu) == 0) bits = 0;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
GL_INLINE uint32_t sort_key(int32_t x) { return static_cast<uint32_t>(x) ^ 0x80000000u; }

GL_INLINE bool sort_few(int64_t n, int64_t count) { return count <= 1024 && count < n / 16; }

inline void sort_insertion(uint64_t* words, int64_t n) {
  for (int64_t i = 1; i < n; i++) {
    const uint64_t w = words[i];
    int64_t j = i;
    for (; j > 0 && words[j - 1] > w; j--) words[j] = words[j - 1];
    words[j] = w;
  }
}

// By the upper 32 bits, between `words` and `other`, both of n; the result is in `words`.
GL_CALLED void sort_radix(uint64_t* words, uint64_t* other, int64_t n) {
  uint64_t* const home = words;
#pragma GCC unroll 4
  for (int shift = 32; shift < 64; shift += 8) {
    int64_t offsets[kSortDigits] = {};
    for (int64_t i = 0; i < n; i++) offsets[words[i] >> shift & 255]++;
    if (offsets[words[0] >> shift & 255] == n) continue;  // one digit: nothing moves
    int64_t at = 0;
    for (int d = 0; d < kSortDigits; d++) {
      const int64_t have = offsets[d];
      offsets[d] = at;
      at += have;
    }
    for (int64_t i = 0; i < n; i++) other[offsets[words[i] >> shift & 255]++] = words[i];
    uint64_t* const now = other;
    other = words, words = now;
  }
  if (words != home) std::memcpy(home, words, static_cast<size_t>(n) * sizeof(uint64_t));
}

// heap[0] is the largest of n words.
inline void sort_sink(uint64_t* heap, int64_t n, int64_t at, uint64_t w) {
  for (int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
    if (child + 1 < n && heap[child + 1] > heap[child]) child++;
    if (heap[child] <= w) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = w;
}

// The lines of x, their places in y, and the rooms for words that a line needs.
struct SortLines {
  Walk<2> walk;
  int64_t n, count, along, step = 1;

  explicit SortLines(const Call& call) {
    const Tensor &x = call[0], &y = call[1];
    const int axis = static_cast<int>(call.attr_int(0));
    n = x.shape[axis], count = y.shape[axis], along = x.strides[axis];
    int64_t inner = 1;
    for (int i = x.rank - 1; i > axis; i--) inner *= x.shape[i];
    step = inner;
    int64_t dense = 1, strides[kMaxRank];
    for (int i = x.rank - 1; i >= 0; i--) strides[i] = dense, dense *= y.shape[i];
    for (int i = 0; i < x.rank; i++) {
      if (i == axis) continue;
      walk.shape[walk.rank] = x.shape[i];
      walk.stride[0][walk.rank] = x.strides[i];
      walk.stride[1][walk.rank++] = strides[i];
    }
  }
};

inline void argsort_plan(const Call& call, KernelPlan& plan) {
  const SortLines lines(call);
  const bool few = sort_few(lines.n, lines.count);
  plan.parts[0] = parts_for(static_cast<double>(call[0].size()), few ? 64 * 1024 : 8 * 1024);
  const int64_t words = few ? lines.count : lines.n <= kSortShort ? lines.n : 2 * lines.n;
  plan.scratch_bytes = static_cast<size_t>(words) * sizeof(uint64_t);
}

template <class T> inline void argsort_run(const Call& call, int, int part, int parts, void* scratch) {
  if (call[1].size() == 0) return;
  SortLines lines(call);
  const int64_t n = lines.n, count = lines.count;
  const uint32_t flip = call.attr_int(1) ? 0xffffffffu : 0u;
  uint64_t* words = static_cast<uint64_t*>(scratch);
  const Range range = part_range(lines.walk.size(), part, parts);
  lines.walk.seek(range.begin);
  for (int64_t r = range.begin; r < range.end; r++, lines.walk.next()) {
    const T* x = call[0].as<const T>() + lines.walk.at[0];
    const auto word = [&](int64_t i) {
      return static_cast<uint64_t>(sort_key(x[i * lines.along]) ^ flip) << 32 | static_cast<uint64_t>(i);
    };
    if (sort_few(n, count)) {
      for (int64_t i = 0; i < count; i++) words[i] = word(i);
      for (int64_t i = count / 2 - 1; i >= 0; i--) sort_sink(words, count, i, words[i]);
      for (int64_t i = count; i < n; i++) {
        const uint64_t w = word(i);
        if (w < words[0]) sort_sink(words, count, 0, w);
      }
      for (int64_t end = count - 1; end > 0; end--) {
        const uint64_t top = words[0];
        sort_sink(words, end, 0, words[end]);
        words[end] = top;
      }
    } else {
      for (int64_t i = 0; i < n; i++) words[i] = word(i);
      if (n <= kSortShort) sort_insertion(words, n);
      else sort_radix(words, words + n, n);
    }
    int32_t* y = call[1].as<int32_t>() + lines.walk.at[1];
    for (int64_t i = 0; i < count; i++) y[i * lines.step] = static_cast<int32_t>(words[i] & 0xffffffffu);
  }
}

inline constexpr KernelRow kSortRows[] = {
    {"argsort", "f32_i32", argsort_plan, argsort_run<float>},
    {"argsort", "i32", argsort_plan, argsort_run<int32_t>},
};

}  // namespace gradloom::GL_ISA
