// quant.h: blocks of quantised numbers as f32.
//
// A block holds `kElements` neighbours: scales (f16, little-endian, unaligned) and packed integers. All formats and the
// order of their arithmetic are those of the gguf package, bit for bit: products are rounded before anything is added.
// The unit of work is a chunk of 32 neighbours: a whole small block, or an eighth of a block of 256. A decoder names
// the chunk's numbers by position and hands vectors to `put(position, vector)`; its `Head` is read once a block. As:
// Exact, or ToBf16, which rounds each number; where numbers are looked up, what is looked up is rounded.
#pragma once
#include "../isa/shared.h"
#include "index.h"

namespace gradloom::GL_ISA::quant {

constexpr int64_t kChunk = 32;

struct Exact {
  static F of(F x) { return x; }
};
struct ToBf16 {
  static F of(F x) { return from_int_bits(bf16_bits(x)); }
};

// A little-endian f16 at any address.
inline float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return half_to_float(bits);
}

inline uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}

// Bit `lane` of a word, tested per lane: word & kBits[lane].
alignas(64) inline constexpr uint32_t kBits[32] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
    1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
    1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

inline I low(I x, int32_t mask) { return x & I::set1(mask); }

// A function of the low four bits: its sixteen values in a register where a lookup is one instruction, else computed.
template <class Fn> struct OfFourBits {
#if defined(GL_ISA_AVX512)
  F values;
  explicit OfFourBits(Fn fn) : values{fn(I::iota())} {}
  F operator()(I x) const { return lookup(values, x); }
#else
  Fn fn;
  F operator()(I x) const { return fn(low(x, 15)); }
#endif
};
template <class Fn> OfFourBits(Fn) -> OfFourBits<Fn>;

// What the chunks of a block share, made ready once a block. Most formats: nothing.
struct Nothing {
  explicit Nothing(const uint8_t*) {}
};

// Four bits a number: the first half of the block in the low ones.
template <bool offset> struct Q4 {  // q4_0: d (q - 8); q4_1: d q + m
  static constexpr int64_t kElements = 32, kBytes = offset ? 20 : 18;
  using Head = Nothing;
  template <class As = Exact, class Put> static void chunk(const uint8_t* block, const Head&, int, Put put) {
    const F d = set1_f16(block), m = offset ? set1_f16(block + 2) : F::zero();
    const uint8_t* const q = block + (offset ? 4 : 2);
    const OfFourBits number{[&](I x) { return As::of(offset ? d * to_f32(x) + m : d * to_f32(x - I::set1(8))); }};
#pragma GCC unroll 2
    for (int i = 0; i < 16; i += F::N) {
      const I x = load_bytes(q + i);
      put(i, number(x));
      put(i + 16, number(shift_right_logical(x, 4)));
    }
  }
};

// The fifth bit of number i is bit i of a word.
template <bool offset> struct Q5 {  // q5_0: d (q - 16); q5_1: d q + m
  static constexpr int64_t kElements = 32, kBytes = offset ? 24 : 22;
  using Head = Nothing;
  template <class As = Exact, class Put> static void chunk(const uint8_t* block, const Head&, int, Put put) {
    const F d = set1_f16(block), m = offset ? set1_f16(block + 2) : F::zero();
    const uint8_t* const q = block + (offset ? 8 : 6);
    const I high = I::set1(static_cast<int32_t>(word_at(q - 4)));
    const OfFourBits less{[&](I x) { return As::of(offset ? d * to_f32(x) + m : d * to_f32(x - I::set1(16))); }};
    const OfFourBits more{[&](I x) { return As::of(offset ? d * to_f32(x | I::set1(16)) + m : d * to_f32(x)); }};
    auto number = [&](I x, int at) {
      const I bit = high & I::load(reinterpret_cast<const int32_t*>(kBits + at));
      return select(ne(bit, I::zero()), more(x), less(x));
    };
#pragma GCC unroll 2
    for (int i = 0; i < 16; i += F::N) {
      const I x = load_bytes(q + i);
      put(i, number(x, i));
      put(i + 16, number(shift_right_logical(x, 4), i + 16));
    }
  }
};

struct Q8 {  // q8_0: d q
  static constexpr int64_t kElements = 32, kBytes = 34;
  using Head = Nothing;
  template <class As = Exact, class Put> static void chunk(const uint8_t* block, const Head&, int, Put put) {
    const F d = set1_f16(block);
#pragma GCC unroll 4
    for (int i = 0; i < 32; i += F::N) put(i, As::of(d * load_i8(reinterpret_cast<const int8_t*>(block + 2 + i))));
  }
};

// What a block's head makes of its scales: numbers that go to all lanes from memory, where that needs no shuffle.
template <int count> struct Scales {
  alignas(64) float numbers[count];
  void keep() { asm("" : "+m"(numbers)); }
};

// Blocks of 256. Chunk c of q2_k and q3_k: bits 2 (c % 4) and up of 32 bytes; a scale for 16 numbers.
struct Q2K {  // d (s & 15) q - dmin (s >> 4)
  static constexpr int64_t kElements = 256, kBytes = 84;
  struct Head : Scales<32> {  // the scales, then the minima
    explicit Head(const uint8_t* block) {
      const F d = F::set1(half_at(block + 80)), least = F::set1(half_at(block + 82));
#pragma GCC unroll 4
      for (int i = 0; i < 16; i += F::N) {
        const I s = load_bytes(block + i);
        (d * to_f32(low(s, 15))).store(numbers + i);
        (least * to_f32(shift_right_logical(s, 4))).store(numbers + 16 + i);
      }
      keep();
    }
  };
  template <class As = Exact, class Put> static void chunk(const uint8_t* block, const Head& head, int c, Put put) {
    const uint8_t* const q = block + 16 + 32 * (c / 4);
    const int shift = 2 * (c % 4);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      const F scale = F::set1(head.numbers[2 * c + h]), min = F::set1(head.numbers[16 + 2 * c + h]);
#pragma GCC unroll 2
      for (int i = 16 * h; i < 16 * h + 16; i += F::N)
        put(i, As::of(scale * to_f32(low(shift_right_logical(load_bytes(q + i), shift), 3)) - min));
    }
  }
};

struct Q3K {  // d (s - 32) (q - 4 where bit c of the mask is 0); the scales: four bits, then two more
  static constexpr int64_t kElements = 256, kBytes = 110;
  struct Head : Scales<16> {
    explicit Head(const uint8_t* block) {
      const uint32_t a = word_at(block + 96), b = word_at(block + 100), c = word_at(block + 104);
      const uint32_t six[4] = {(a & 0x0f0f0f0f) | (c << 4 & 0x30303030), (b & 0x0f0f0f0f) | (c << 2 & 0x30303030),
                               (a >> 4 & 0x0f0f0f0f) | (c & 0x30303030), (b >> 4 & 0x0f0f0f0f) | (c >> 2 & 0x30303030)};
      uint8_t bytes[16];
      std::memcpy(bytes, six, 16);
      const F d = F::set1(half_at(block + 108));
#pragma GCC unroll 4
      for (int i = 0; i < 16; i += F::N) (d * to_f32(load_bytes(bytes + i) - I::set1(32))).store(numbers + i);
      keep();
    }
  };
  template <class As = Exact, class Put> static void chunk(const uint8_t* block, const Head& head, int c, Put put) {
    const uint8_t* const q = block + 32 + 32 * (c / 4);
    const int shift = 2 * (c % 4);
    const I bit = I::set1(1 << c);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      const F scale = F::set1(head.numbers[2 * c + h]);
#pragma GCC unroll 2
      for (int i = 16 * h; i < 16 * h + 16; i += F::N) {
        const I x = low(shift_right_logical(load_bytes(q + i), shift), 3);
        const I less = select(ne(load_bytes(block + i) & bit, I::zero()), I::zero(), I::set1(4));
        put(i, As::of(scale * to_f32(x - less)));
      }
    }
  }
};

// The scales and minima of a block of q4_k or q5_k: six bits each, in 12 bytes.
struct SixBitScales : Scales<16> {  // the scales of the chunks, then their minima
  explicit SixBitScales(const uint8_t* block) {
    const uint32_t a = word_at(block + 4), b = word_at(block + 8), c = word_at(block + 12);
    const uint32_t six[4] = {a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030), b & 0x3f3f3f3f,
                             (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)};
    uint8_t bytes[16];
    std::memcpy(bytes, six, 16);
    const F d = set1_f16(block), least = set1_f16(block + 2);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += F::N) {
      const F of = F::N > 8 ? select(Mask<float>::first_n(8), d, least) : i < 8 ? d : least;
      (of * to_f32(load_bytes(bytes + i))).store(numbers + i);
    }
    keep();
  }
};

struct Q4K {  // d s q - dmin m; chunks 2 i and 2 i + 1 share 32 bytes
  static constexpr int64_t kElements = 256, kBytes = 144;
  using Head = SixBitScales;
  template <class As = Exact, class Put> static void chunk(const uint8_t* block, const Head& head, int c, Put put) {
    const F scale = F::set1(head.numbers[c]), min = F::set1(head.numbers[8 + c]);
    const uint8_t* const q = block + 16 + 32 * (c / 2);
    const int shift = 4 * (c % 2);
    const OfFourBits number{[&](I x) { return As::of(scale * to_f32(x) - min); }};
#pragma GCC unroll 4
    for (int i = 0; i < 32; i += F::N) put(i, number(shift_right_logical(load_bytes(q + i), shift)));
  }
};

struct Q5K {  // as q4_k; the fifth bit of chunk c is bit c of 32 bytes
  static constexpr int64_t kElements = 256, kBytes = 176;
  using Head = SixBitScales;
  template <class As = Exact, class Put> static void chunk(const uint8_t* block, const Head& head, int c, Put put) {
    const F scale = F::set1(head.numbers[c]), min = F::set1(head.numbers[8 + c]);
    const uint8_t* const q = block + 48 + 32 * (c / 2);
    const int shift = 4 * (c % 2);
    const I bit = I::set1(1 << c);
    const OfFourBits less{[&](I x) { return As::of(scale * to_f32(x) - min); }};
    const OfFourBits more{[&](I x) { return As::of(scale * to_f32(x | I::set1(16)) - min); }};
#pragma GCC unroll 4
    for (int i = 0; i < 32; i += F::N) {
      const I x = shift_right_logical(load_bytes(q + i), shift);
      put(i, select(ne(load_bytes(block + 16 + i) & bit, I::zero()), more(x), less(x)));
    }
  }
};

struct Q6K {  // d s (q - 32); a signed scale for 16 numbers
  static constexpr int64_t kElements = 256, kBytes = 210;
  struct Head : Scales<16> {
    explicit Head(const uint8_t* block) {
      const F d = F::set1(half_at(block + 208));
#pragma GCC unroll 4
      for (int i = 0; i < 16; i += F::N)
        (d * load_i8(reinterpret_cast<const int8_t*>(block + 192 + i))).store(numbers + i);
      keep();
    }
  };
  template <class As = Exact, class Put> static void chunk(const uint8_t* block, const Head& head, int c, Put put) {
    const uint8_t* const q = block + 64 * (c / 4) + 32 * (c % 2);
    const uint8_t* const top = block + 128 + 32 * (c / 4);
    const int shift = 4 * (c / 2 % 2), shift_top = 2 * (c % 4);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      const F scale = F::set1(head.numbers[2 * c + h]);
#pragma GCC unroll 2
      for (int i = 16 * h; i < 16 * h + 16; i += F::N) {
        const I x = low(shift_right_logical(load_bytes(q + i), shift), 15);
        const I high = low(shift_right_logical(load_bytes(top + i), shift_top), 3) << 4;
        put(i, As::of(scale * to_f32((x | high) - I::set1(32))));
      }
    }
  }
};

// Halves, 32 at a time as well. Those of bf16 are rounded already.
template <bool brain> struct Halves {
  static constexpr int64_t kElements = 32, kBytes = 64;
  using Head = Nothing;
  template <class As = Exact> static F load(const uint8_t* p) {
    const uint16_t* const x = reinterpret_cast<const uint16_t*>(p);
    return brain ? load_bf16(x) : As::of(load_f16(x));
  }
  template <class As = Exact> static F load_n(const uint8_t* p, int n) {
    const uint16_t* const x = reinterpret_cast<const uint16_t*>(p);
    return brain ? load_bf16_n(x, n) : As::of(load_f16_n(x, n));
  }
  template <class As = Exact, class Put> static void chunk(const uint8_t* block, const Head&, int, Put put) {
#pragma GCC unroll 4
    for (int i = 0; i < 32; i += F::N) put(i, load<As>(block + 2 * i));
  }
};

// ---- runs of neighbours ---------------------------------------------------------------------------------

// Numbers first .. first + count of an array whose blocks lie one after the other. Both may cut blocks; what is read
// stays inside the bytes of those numbers' blocks (of halves: of those numbers).
template <class Q> void decode(const uint8_t* data, int64_t first, int64_t count, float* to) {
  auto block_of = [&](int64_t at) { return data + at / Q::kElements * Q::kBytes; };
  auto part = [&](int64_t at, int64_t n) {  // less than a chunk, inside one
    alignas(64) float room[kChunk];
    const int64_t start = at % kChunk;
    const uint8_t* const block = block_of(at);
    const typename Q::Head head(block);
    Q::chunk(block, head, static_cast<int>(at % Q::kElements / kChunk), [&](int i, F x) { x.store(room + i); });
    std::memcpy(to, room + start, static_cast<size_t>(n) * sizeof(float));
    to += n;
  };
  const int64_t end = first + count;
  int64_t at = first;
  if (at % kChunk && count) {
    const int64_t n = kChunk - at % kChunk < count ? kChunk - at % kChunk : count;
    part(at, n);
    at += n;
  }
  while (at + kChunk <= end) {
    const uint8_t* const block = block_of(at);
    const typename Q::Head head(block);
    const int64_t block_end = at - at % Q::kElements + Q::kElements, stop = block_end < end ? block_end : end;
    for (; at + kChunk <= stop; at += kChunk, to += kChunk)
      Q::chunk(block, head, static_cast<int>(at % Q::kElements / kChunk), [&](int i, F x) { x.store(to + i); });
  }
  if (at < end) part(at, end - at);
}
template <bool brain> void decode_halves(const uint8_t* data, int64_t first, int64_t count, float* to) {
  data += 2 * first;
  int64_t i = 0;
  for (; i + F::N <= count; i += F::N) Halves<brain>::load(data + 2 * i).store(to + i);
  if (i == count) return;
  const int n = static_cast<int>(count - i);
  Halves<brain>::load_n(data + 2 * i, n).store_n(to + i, n);
}

inline void copy_floats(const uint8_t* data, int64_t first, int64_t count, float* to) {
  std::memcpy(to, data + 4 * first, static_cast<size_t>(count) * sizeof(float));
}

#if defined(GL_BF16_PAIRS)
inline DecodeFn decoder(DType t) { return avx512::shared_decoder(t); }
#else
inline DecodeFn decoder(DType t) {
  switch (t) {
    case DType::f32: return copy_floats;
    case DType::f16: return decode_halves<false>;
    case DType::bf16: return decode_halves<true>;
    case DType::q4_0: return decode<Q4<false>>;
    case DType::q4_1: return decode<Q4<true>>;
    case DType::q5_0: return decode<Q5<false>>;
    case DType::q5_1: return decode<Q5<true>>;
    case DType::q8_0: return decode<Q8>;
    case DType::q2_k: return decode<Q2K>;
    case DType::q3_k: return decode<Q3K>;
    case DType::q4_k: return decode<Q4K>;
    case DType::q5_k: return decode<Q5K>;
    case DType::q6_k: return decode<Q6K>;
    default: return nullptr;
  }
}
#endif

// ---- cast(x) -> y ---------------------------------------------------------------------------------------

// Jobs of up to kRun neighbours along the axis of x's blocks.
constexpr int64_t kRun = 256;
struct CastJobs {
  int axis;  // of the blocks; all other axes are walked
  int64_t extent, runs, jobs;
};
inline CastJobs cast_jobs(const Tensor& x) {
  CastJobs c{0, x.size(), 0, 0};
  if (!x.dense()) {
    while (c.axis < x.rank - 1 && (x.strides[c.axis] != 1 || x.shape[c.axis] == 1)) c.axis++;
    c.extent = x.shape[c.axis];
  }
  c.runs = (c.extent + kRun - 1) / kRun;
  c.jobs = c.extent ? x.size() / c.extent * c.runs : 0;
  return c;
}
inline void plan_cast(const Call& c, KernelPlan& plan) {
  plan.parts[0] = parts_for(static_cast<double>(c[1].size()), 65536, 64);
}
inline void run_cast(const Call& c, int, int part, int parts, void*) {
  const Tensor &x = c[0], &y = c[1];
  const CastJobs w = cast_jobs(x);
  const DecodeFn decode_run = decoder(x.dtype);
  const uint8_t* const data = x.as<const uint8_t>();
  const Range mine = part_range(w.jobs, part, parts);
  if (x.dense()) {
    const int64_t end = mine.end * kRun < w.extent ? mine.end * kRun : w.extent;
    decode_run(data, mine.begin * kRun, end - mine.begin * kRun, y.as<float>() + mine.begin * kRun);
    return;
  }
  int64_t y_strides[kMaxRank], step = 1;
  for (int i = x.rank - 1; i >= 0; i--) {
    y_strides[i] = step;
    step *= x.shape[i];
  }
  alignas(64) float room[kRun];
  for (int64_t job = mine.begin; job < mine.end; job++) {
    const int64_t at = job % w.runs * kRun, count = w.extent - at < kRun ? w.extent - at : kRun;
    int64_t from = at, to = at * y_strides[w.axis], left = job / w.runs;
    for (int i = x.rank - 1; i >= 0; i--) {
      if (i == w.axis) continue;
      from += left % x.shape[i] * x.strides[i];
      to += left % x.shape[i] * y_strides[i];
      left /= x.shape[i];
    }
    float* const out = y.as<float>() + to;
    if (y_strides[w.axis] == 1) {
      decode_run(data, from, count, out);
    } else {
      decode_run(data, from, count, room);
      for (int64_t i = 0; i < count; i++) out[i * y_strides[w.axis]] = room[i];
    }
  }
}

// ---- get_rows(table, ids) -> y --------------------------------------------------------------------------

inline void run_get_rows(const Call& call, int, int part, int parts, void*) {
  const DecodeFn decode_run = decoder(call[0].dtype);
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
    decode_run(call[0].as<const uint8_t>(), id * width, width, y + i * width);
  }
}

#define GL_QUANTISED(type)                                                            \
  {"cast", type "_f32", plan_cast, run_cast}, {"get_rows", type "_i32_f32", get_rows_plan, run_get_rows}
inline constexpr KernelRow kQuantRows[] = {
    {"get_rows", "f16_i32_f32", get_rows_plan, run_get_rows},
    {"get_rows", "bf16_i32_f32", get_rows_plan, run_get_rows},
    GL_QUANTISED("q4_0"), GL_QUANTISED("q4_1"), GL_QUANTISED("q5_0"), GL_QUANTISED("q5_1"), GL_QUANTISED("q8_0"),
    GL_QUANTISED("q2_k"), GL_QUANTISED("q3_k"), GL_QUANTISED("q4_k"), GL_QUANTISED("q5_k"), GL_QUANTISED("q6_k"),
};
#undef GL_QUANTISED

}  // namespace gradloom::GL_ISA::quant
