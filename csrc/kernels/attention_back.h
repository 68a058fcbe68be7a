// attention_back.h: dq, dk, dv of attention, from its output and lse, without a T x T matrix.
//
// FlashAttention-2 (Dao 2023), algorithm 2, with the loops exchanged and everything transposed:
//
//   phase 0   for each job: a share of the queries of all heads that read one key head, cut where the work is equal
//               dK = dV = 0                                 its own, in the workspace; not stored where tiles write first
//               for each block of kStrips strips of queries:
//                 Q = scale * q^T, G = scale * g^T, delta = scale * (sum of g y - g_lse), dq = 0
//                 for each block K, V of up to kKeys keys that some query sees, for each strip:
//                   S = K Q, dP = V G                       softcap: S = cap * tanh(S / cap)
//                   P = exp(S - lse), dZ = P (dP - delta)   softcap: dZ = dZ (1 - (S / cap)^2)
//                                                           both 0 where a query does not see a key
//                   dq += dZ^T K;   dK += dZ q;   dV += P g
//   phase 1   dk, dv: the sums over the jobs, in their order
#pragma once
#include "attention_strip.h"

namespace gradloom::GL_ISA::attn {

constexpr int kStrips = 2;       // of a block
constexpr int64_t kJobs = 32;    // enough for 16 threads
constexpr int64_t kQueries = kStrips * kStrip;  // of a block
constexpr int64_t kRowsAhead = 8;               // rows that are fetched before they are read
constexpr int64_t kSumRows = 64;                // of dk and dv that are summed over the jobs at a time

struct Backward {
  Shape x;
  bool rounded;
  int64_t blocks, units, chunks, jobs;  // blocks of queries per head; units: of a group; chunks of these; in all
  explicit Backward(const Call& call) : x(call, call[1], call[2], false, 1), rounded(call[0].dtype == DType::bf16) {
    blocks = ceil_div(x.tokens, kQueries);
    units = blocks * x.share;
    const int64_t heads = x.batch * x.groups;
    const double cost =
        static_cast<double>(x.share * x.tokens * x.reach(kQueries)) * static_cast<double>(x.d + 8) * 2.5;
    const int64_t most = heads < 1 || heads >= kJobs ? 1 : kJobs / heads;
    chunks = heads ? parts_for(cost, kPartCost, static_cast<uint32_t>(most < units ? most : units)) : 1;
    jobs = heads * chunks;
  }
  double cost() const {
    return static_cast<double>(x.batch * x.heads * x.tokens * x.reach(kQueries)) * static_cast<double>(x.d + 8) * 2.5;
  }
  // The workspace: the keys [begin, end) of each job, then its dk and dv [tokens][d] each.
  size_t head_floats() const { return static_cast<size_t>(round_up(jobs * 4, 16)); }
  size_t slot() const { return static_cast<size_t>(2 * x.tokens * x.d); }
  // Scratch: work per block of queries; what the products of a block need
  size_t weight_floats() const { return static_cast<size_t>(round_up(blocks * 2, 16)); }
};

// (g, q, k, v, y, lse, positions, g_lse?; scale, window?, softcap?) -> dq, dk, dv
template <class Unit> inline void plan_backward(const Call& call, KernelPlan& plan) {
  const Backward w(call);
  plan.phases = 2;
  plan.scratch_bytes = (w.weight_floats() + Unit::block_floats(w)) * sizeof(float);
  plan.workspace_bytes = (w.head_floats() + static_cast<size_t>(w.jobs) * w.slot()) * sizeof(float);
  if (w.jobs == 0) {
    plan.phases = 1;
    plan.workspace_bytes = 0;
    return;
  }
  plan.parts[0] = parts_for(w.cost(), kPartCost, at_most(w.jobs));
  plan.parts[1] = parts_for(static_cast<double>(w.jobs) * static_cast<double>(w.slot()), 65536, 64);
}

struct Grads {
  Operand g, q, k, v, y;
  const float *lse, *g_lse;
  const int32_t* positions;
  float *dq, *dk, *dv;
  float scale;
  explicit Grads(const Call& c)
      : g(c[0], c[0].dtype == DType::bf16), q(c[1], g.rounded), k(c[2], g.rounded), v(c[3], g.rounded),
        y(c[4], g.rounded), lse(c[5].as<const float>()), g_lse(c[7].as<const float>()),
        positions(c[6].as<const int32_t>()), dq(c[8].as<float>()), dk(c[9].as<float>()), dv(c[10].as<float>()),
        scale(static_cast<float>(c.attr_float(0))) {}
};

// scores, dp of `rows` keys from k0 become weights and dz. lse, delta: per query, ready for scaled q and g.
template <bool capped, bool rounded>
inline void slopes(const Strip& strip, int64_t k0, int64_t rows, int64_t ld, const float* lse, const float* delta,
                   float cap, float* scores, float* dp) {
  [[maybe_unused]] const F share = F::set1(1.0f / cap), one = F::set1(1.0f);
  for (int j = 0; j < strip.ld; j += F::N) {
    const I first = I::load(strip.first + j), last = I::load(strip.last + j);
    const F less = F::load(lse + j), back = F::load(delta + j);
    each_row(strip, k0, rows, [&](int64_t r, auto masked) __attribute__((always_inline)) {
      float *const s = scores + r * ld + j, *const d = dp + r * ld + j;
      const F score = F::load(s);
      F p = exp(score - less);
      F z = p * (F::load(d) - back);
      if constexpr (capped) {  // d score / d of what it was before: 1 - tanh^2
        const F t = score * share;
        z *= fnma(t, t, one);
      }
      if constexpr (masked.value) {
        const I key = I::set1(static_cast<int32_t>(k0 + r));
        const auto sees = ge(key, first) & le(key, last);
        p = select(sees, p, F::zero());
        z = select(sees, z, F::zero());
      }
      (rounded ? quant::ToBf16::of(p) : p).store(s);
      (rounded ? quant::ToBf16::of(z) : z).store(d);
    });
  }
}

// lse and delta of `queries` queries from t0 on; g, y: their rows.
inline void find_delta(const Shape& x, const Grads& a, int64_t b, int64_t h, int64_t t0, int64_t queries, const float* g,
                       int64_t g_row, const float* y, int64_t y_row, float* lse, float* delta) {
  for (int64_t i = 0; i < queries; i++) {
    F sum = F::zero();
    for (int64_t j = 0; j < x.d; j += F::N) {
      __builtin_prefetch(g + (i + kRowsAhead) * g_row + j);
      __builtin_prefetch(y + (i + kRowsAhead) * y_row + j);
      const int lanes = x.d - j < F::N ? static_cast<int>(x.d - j) : F::N;
      sum = mul_add(F::load_n(g + i * g_row + j, lanes), F::load_n(y + i * y_row + j, lanes), sum);
    }
    const int64_t at = (b * x.tokens + t0 + i) * x.heads + h;
    lse[i] = a.lse[at];
    delta[i] = (reduce_add(sum) - (a.g_lse ? a.g_lse[at] : 0.0f)) * a.scale;
  }
}

// Which rows of a block of keys [k0, k1) a strip sees.
inline void seen_rows(const Strip& s, int64_t k0, int64_t k1, int64_t& from, int64_t& to) {
  const int64_t r0 = (s.begin > k0 ? s.begin < k1 ? s.begin : k1 : k0) - k0;
  const int64_t r1 = (s.end < k1 ? s.end > k0 ? s.end : k0 : k1) - k0;
  from = r0;
  to = r1 > r0 ? r1 : r0;
}
// The other rows of its weights and slopes become 0.
inline void clear_rows(const Strip& s, int64_t rows, int64_t from, int64_t to, float* weights, float* dz) {
  const size_t width = static_cast<size_t>(s.ld) * sizeof(float);
  for (int64_t r = 0; r < rows; r++) {
    if (r == from) r = to;
    if (r >= rows) break;
    std::memset(weights + r * kQueries, 0, width);
    std::memset(dz + r * kQueries, 0, width);
  }
}
// The strips [low, high) that see some of `rows` keys from row r on.
struct StripRange {
  int low, high;
};
inline StripRange strips_of(int count, const int64_t* from, const int64_t* to, int64_t r, int64_t rows) {
  StripRange found{count, 0};
  for (int i = 0; i < count; i++) {
    if (from[i] >= r + rows || to[i] <= r) continue;
    if (i < found.low) found.low = i;
    found.high = i + 1;
  }
  return found;
}

// The sums dk, dv [tokens][d] of a job. Rows before `filled` hold numbers; a tile behind them writes its rows, and rows
// that no tile writes become 0.
struct KeySums {
  float *dk, *dv;
  int64_t d, filled;

  void fill(int64_t end) {
    if (end <= filled) return;
    const size_t bytes = static_cast<size_t>((end - filled) * d) * sizeof(float);
    std::memset(dk + filled * d, 0, bytes);
    std::memset(dv + filled * d, 0, bytes);
    filled = end;
  }
  // Whether a tile of rows adds to what they hold; else it must write them.
  bool adds(int64_t row, int64_t rows) {
    const bool fresh = row >= filled;
    fill(fresh ? row : row + rows);
    if (fresh) filled = row + rows;
    return !fresh;
  }
};

// Products in f32, of rows that are widened where they are bf16. attention_pairs.h has another unit.
struct BackNumbers {
  // q^T, g^T, dq; weights, dz; where they are widened g, q, y, k, v
  static size_t block_floats(const Backward& w) {
    const int64_t wide = w.rounded ? (3 * kQueries + 2 * kKeys) * w.x.d : 0;
    return static_cast<size_t>(kQueries * (3 * w.x.d + 2 * kKeys) + wide);
  }

  // One block of queries of head h: writes its dq, adds to dk and dv.
  void back_block(const Call& call, const Backward& w, const Grads& a, int64_t b, int64_t h, int64_t block,
                  float* room, KeySums& sums) {
    const Shape& x = w.x;
    const int64_t d = x.d, n = h / x.share, t0 = block * kQueries;
    const int64_t queries = x.tokens - t0 < kQueries ? x.tokens - t0 : kQueries;
    const int count = static_cast<int>(ceil_div(queries, kStrip));
    float *const qt = room, *const gt = qt + kQueries * d, *const dq = gt + kQueries * d;
    float *const weights = dq + kQueries * d, *const dz = weights + kKeys * kQueries;
    float *const g_room = dz + kKeys * kQueries, *const q_room = g_room + kQueries * d;
    float *const y_room = q_room + kQueries * d, *const k_room = y_room + kQueries * d;
    float* const v_room = k_room + kKeys * d;
    float lse[kQueries] = {}, delta[kQueries] = {};
    int64_t g_row = x.q_row, q_row = x.q_row, y_row = x.q_row;
    const int64_t first_query = x.q_at(b, t0, h);
    const float* const g = a.g.from(first_query).rows(queries, d, g_row, g_room);
    const float* const q = a.q.from(first_query).rows(queries, d, q_row, q_room);
    const float* const y = a.y.from(first_query).rows(queries, d, y_row, y_room);
    find_delta(x, a, b, h, t0, queries, g, g_row, y, y_row, lse, delta);
    Strip strips[kStrips];
    int64_t begin = INT64_MAX, end = 0;
    for (int i = 0; i < count; i++) {
      strips[i] = Strip(call, x, a.positions, b, h, block * kStrips + i, false);
      const Strip& s = strips[i];
      pack(q + i * kStrip * q_row, q_row, s, d, a.scale, qt + i * kStrip * d);
      pack(g + i * kStrip * g_row, g_row, s, d, a.scale, gt + i * kStrip * d);
      if (s.begin < begin) begin = s.begin;
      if (s.end > end) end = s.end;
    }
    bool started[kStrips] = {};
    for (int64_t k0 = begin; k0 < end; k0 += kKeys) {
      const int64_t k1 = k0 + kKeys < end ? k0 + kKeys : end;
      int64_t k_row = x.k_row, v_row = x.k_row;
      const float* const keys = a.k.from(x.k_at(b, k0, n)).rows(k1 - k0, d, k_row, k_room);
      const float* const values = a.v.from(x.k_at(b, k0, n)).rows(k1 - k0, d, v_row, v_room);
      int64_t from[kStrips], to[kStrips];  // the rows of the block that each strip sees
      for (int i = 0; i < count; i++) {
        const Strip& s = strips[i];
        seen_rows(s, k0, k1, from[i], to[i]);
        float *const p = weights + i * kStrip, *const z = dz + i * kStrip;
        clear_rows(s, k1 - k0, from[i], to[i], p, z);
        const int64_t r0 = from[i], at = k0 + r0, rows = to[i] - r0;
        if (rows == 0) continue;
        const float *const k = keys + r0 * k_row, *const v = values + r0 * v_row;
        float *const p0 = p + r0 * kQueries, *const z0 = z + r0 * kQueries;
        product<Side::rows>(k, k_row, rows, qt + i * kStrip * d, s.ld, d, s.ld, p0, kQueries, false);
        product<Side::rows>(v, v_row, rows, gt + i * kStrip * d, s.ld, d, s.ld, z0, kQueries, false);
        if (x.cap != 0.0f) cap_scores(p0, rows, kQueries, s.ld, x.cap);
        const auto weights_and_slopes = w.rounded ? (x.cap != 0.0f ? slopes<true, true> : slopes<false, true>)
                                                  : (x.cap != 0.0f ? slopes<true, false> : slopes<false, false>);
        weights_and_slopes(s, at, rows, kQueries, lse + i * kStrip, delta + i * kStrip, x.cap, p0, z0);
        for (int64_t c = 0; c < d; c += kStrip) {
          const int columns = static_cast<int>(d - c < kStrip ? d - c : kStrip);
          product<Side::columns>(z0, kQueries, s.n, k + c, k_row, rows, columns, dq + i * kStrip * d + c, d, started[i]);
        }
        started[i] = true;
      }
      for (int64_t r = 0; r < k1 - k0; r += kTileRows) {
        const int64_t rows = k1 - k0 - r < kTileRows ? k1 - k0 - r : kTileRows;
        const auto [low, high] = strips_of(count, from, to, r, rows);
        if (low >= high) continue;
        const bool add = sums.adds(k0 + r, rows);
        // No query before the first key sees any: the sums would begin with zeros.
        const int64_t first = k0 + r - t0 > low * kStrip ? k0 + r - t0 : low * kStrip;
        const int64_t last = high * kStrip < queries ? high * kStrip : queries;
        const auto sum = [&](const float* left, const float* right, int64_t right_row, float* out) {
          for (int64_t c = 0; c < d; c += kStrip)
            product<Side::rows>(left + r * kQueries + first, kQueries, rows, right + first * right_row + c, right_row,
                                last - first, static_cast<int>(d - c < kStrip ? d - c : kStrip), out + (k0 + r) * d + c,
                                d, add);
        };
        sum(dz, q, q_row, sums.dk);
        sum(weights, g, g_row, sums.dv);
      }
    }
    // Only now: dq may lie where q, g or y does.
    for (int64_t t = 0; t < queries; t++)
      std::memcpy(a.dq + first_query + t * x.q_row, dq + t * d, static_cast<size_t>(d) * sizeof(float));
  }
};

// The work of a block of queries: its keys, taken once per query.
inline int64_t work(const Call& call, const Backward& w, const int32_t* positions, int64_t b, int64_t block) {
  const int64_t t0 = block * kQueries, t1 = t0 + kQueries < w.x.tokens ? t0 + kQueries : w.x.tokens;
  int64_t begin = t0;
  for (int64_t t = t0; t < t1; t++) {
    const Seen s = seen(call, w.x, positions, b, t);
    if (s.first < begin) begin = s.first;
  }
  return (t1 - begin) * (t1 - t0) + 1;
}

// One job: its units are those whose middle lies in its share of the work.
template <class Unit>
inline void back_job(Unit& products, const Call& call, const Backward& w, const Grads& a, int64_t job, float* scratch) {
  const Shape& x = w.x;
  const int64_t b = job / w.chunks / x.groups, n = job / w.chunks % x.groups, chunk = job % w.chunks;
  int64_t* const weight = reinterpret_cast<int64_t*>(scratch);
  float* const room = scratch + w.weight_floats();
  int64_t* const range = call.workspace().as<int64_t>() + 2 * job;
  float* const dk = call.workspace().as<float>() + w.head_floats() + static_cast<size_t>(job) * w.slot();
  KeySums sums{dk, dk + x.tokens * x.d, x.d, 0};
  int64_t total = 0;
  for (int64_t i = 0; i < w.blocks; i++) total += weight[i] = work(call, w, a.positions, b, i);
  total *= x.share;
  for (int pass = 0; pass < 2; pass++) {  // which keys; then the work
    int64_t before = 0, begin = x.tokens, end = 0;
    for (int64_t u = 0; u < w.units; u++) {
      const int64_t i = u % w.blocks, middle = 2 * before + weight[i];
      before += weight[i];
      if (middle * w.chunks / (2 * total) != chunk) continue;
      if (pass == 1) {
        products.back_block(call, w, a, b, n * x.share + u / w.blocks, i, room, sums);
        continue;
      }
      const int64_t t0 = i * kQueries, t1 = t0 + kQueries < x.tokens ? t0 + kQueries : x.tokens;
      const int64_t first = t1 - (weight[i] - 1) / (t1 - t0);
      if (first < begin) begin = first;
      if (t1 > end) end = t1;
    }
    if (pass == 1) break;
    if (begin > end) begin = end;
    range[0] = sums.filled = begin;
    range[1] = end;
  }
  sums.fill(range[1]);
}

// to[r] += from[r], `rows` rows of d floats, to_row floats from row to row of `to`; from's rows are fetched ahead.
inline void add_rows(const float* from, int64_t rows, int64_t d, float* to, int64_t to_row) {
  for (int64_t r = 0; r < rows; r++, from += d, to += to_row)
    row_each(d, [&](int64_t i, auto t) {
      __builtin_prefetch(from + kRowsAhead * d + i);
      row_store(to + i, row_load(to + i, t) + row_load(from + i, t), t);
    });
}

// Rows [begin, end) of batch * tokens: dk and dv are the sums over the jobs, in their order. A block of rows at a time:
// it stays near while each job's rows are read as one piece.
inline void add_jobs(const Call& call, const Backward& w, const Grads& a, Range rows) {
  const Shape& x = w.x;
  const int64_t* const ranges = call.workspace().as<const int64_t>();
  const float* const slots = call.workspace().as<const float>() + w.head_floats();
  for (int64_t row = rows.begin, next; row < rows.end; row = next) {
    const int64_t b = row / x.tokens, s = row % x.tokens, left = rows.end - row;
    int64_t count = left < kSumRows ? left : kSumRows;
    if (count > x.tokens - s) count = x.tokens - s;
    next = row + count;
    for (int64_t n = 0; n < x.groups; n++) {
      float *const dk = a.dk + x.k_at(b, s, n), *const dv = a.dv + x.k_at(b, s, n);
      for (int64_t r = 0; r < count; r++) {
        std::memset(dk + r * x.k_row, 0, static_cast<size_t>(x.d) * sizeof(float));
        std::memset(dv + r * x.k_row, 0, static_cast<size_t>(x.d) * sizeof(float));
      }
      for (int64_t c = 0; c < w.chunks; c++) {
        const int64_t job = (b * x.groups + n) * w.chunks + c;
        const int64_t begin = s > ranges[2 * job] ? s : ranges[2 * job];
        const int64_t end = s + count < ranges[2 * job + 1] ? s + count : ranges[2 * job + 1];
        const float* const from = slots + static_cast<size_t>(job) * w.slot() + begin * x.d;
        const int64_t to = (begin - s) * x.k_row;
        add_rows(from, end - begin, x.d, dk + to, x.k_row);
        add_rows(from + x.tokens * x.d, end - begin, x.d, dv + to, x.k_row);
      }
    }
  }
}

template <class Unit> inline void run_backward(const Call& call, int phase, int part, int parts, void* scratch) {
  const Backward w(call);
  if (w.jobs == 0) return;
  const Grads a(call);
  if (phase == 1) return add_jobs(call, w, a, part_range(w.x.batch * w.x.tokens, part, parts));
  const Range range = part_range(w.jobs, part, parts);
  Unit products;
  for (int64_t job = range.begin; job < range.end; job++)
    back_job(products, call, w, a, job, static_cast<float*>(scratch));
}

}  // namespace gradloom::GL_ISA::attn
