// elementwise.h: one element in, one element out. An op is a small struct: its value on vectors. Everything else
// (strides, broadcasting, parts) is shared.
//
// In place is safe: each run is read before it is written, and an input that shares the output's bytes is dense.
#pragma once
#include "../simd/math.h"
#include "walk.h"

namespace gradloom::GL_ISA::elementwise {

// ---- one input --------------------------------------------------------------------------------------------

// p holds the op's attributes as floats. `weight` is the cost of an element, in additions.
#define GL_UNARY(name, cost, body) \
  struct name { \
    static constexpr int weight = cost; \
    static F value(F x, const float* p) { (void)p; body } \
  };
#define GL_BINARY(name, cost, body) \
  struct name { \
    static constexpr int weight = cost; \
    static F value(F x, F y, const float* p) { (void)p; body } \
  };

inline F one() { return F::set1(1.0f); }
inline F where_positive(F x, F a, F b) { return select(gt(x, F::zero()), a, b); }

GL_UNARY(Neg, 1, return -x;)
GL_UNARY(Abs, 1, return abs(x);)
GL_UNARY(Sgn, 1, return where_positive(x, one(), select(lt(x, F::zero()), -one(), select(is_nan(x), x, F::zero())));)
GL_UNARY(Step, 1, return where_positive(x, one(), F::zero());)
GL_UNARY(Sqr, 1, return x * x;)
GL_UNARY(Sqrt, 2, return sqrt(x);)
GL_UNARY(Exp, 5, return exp(x);)
GL_UNARY(Exp2, 5, return exp2(x);)
GL_UNARY(Expm1, 6, return expm1(x);)
GL_UNARY(Log, 6, return log(x);)
GL_UNARY(Log1p, 7, return log1p(x);)
GL_UNARY(Erf, 8, return erf(x);)
GL_UNARY(Floor, 1, return floor(x);)
GL_UNARY(Ceil, 1, return ceil(x);)
GL_UNARY(Round, 1, return round(x);)
GL_UNARY(Trunc, 1, return trunc(x);)
GL_UNARY(Sin, 7, return sin(x);)
GL_UNARY(Cos, 7, return cos(x);)
GL_UNARY(Relu, 1, return max(x, F::zero());)
GL_UNARY(LeakyRelu, 1, return where_positive(x, x, x * F::set1(p[0]));)
GL_UNARY(Elu, 7, return where_positive(x, x, F::set1(p[0]) * expm1(x));)
GL_UNARY(Sigmoid, 6, return sigmoid(x);)
GL_UNARY(Tanh, 8, return tanh(x);)
GL_UNARY(Gelu, 9, return x * normal_cdf(x);)
GL_UNARY(Silu, 6, return x * sigmoid(x);)
GL_UNARY(Softplus, 12, return softplus(x);)
GL_UNARY(Clamp, 1, return min(max(x, F::set1(p[0])), F::set1(p[1]));)
GL_UNARY(Scale, 1, return mul_add(x, F::set1(p[0]), F::set1(p[1]));)

// sigmoid(x) and 1 - sigmoid(x), both exact to rounding.
struct Logistic {
  F s, rest;
  explicit Logistic(F x) {
    const F e = exp(-abs(x)), most = one() / (one() + e), least = e * most;
    const Mask<float> below = lt(x, F::zero());
    s = select(below, least, most);
    rest = select(below, most, least);
  }
};

// (1 + tanh(u)) / 2 = sigmoid(2u); here 2u.
inline F gelu_tanh_2u(F x) {
  return x * mul_add(x * x, F::set1(0.0713548163f), F::set1(1.59576912f));  // 2 sqrt(2/pi) (x + 0.044715 x^3)
}
GL_UNARY(GeluTanh, 8, return x * sigmoid(gelu_tanh_2u(x));)

// x (2u)'(x), which is multiplied by sigmoid (1 - sigmoid) of 2u. That is 0 long before |x| reaches the bound, beyond which
// x^3 would pass f32 and inf * 0 be NaN.
inline F gelu_tanh_x_slope(F x) {
  x = min(max(x, F::set1(-1e6f)), F::set1(1e6f));
  return x * mul_add(x * x, F::set1(0.214064449f), F::set1(1.59576912f));
}

// ---- two inputs: z = x op y, and dx = g * slope, where g is called x here and the saved value y ------------

GL_BINARY(Add, 1, return x + y;)
GL_BINARY(Sub, 1, return x - y;)
GL_BINARY(Mul, 1, return x * y;)
GL_BINARY(Div, 2, return x / y;)
GL_BINARY(Remainder, 8, return remainder(x, y);)
GL_BINARY(Pow, 30, return pow(x, y);)
GL_BINARY(Maximum, 1, return max(x, y);)
GL_BINARY(Minimum, 1, return min(x, y);)
GL_BINARY(Equal, 1, return select(eq(x, y), one(), F::zero());)
GL_BINARY(Less, 1, return select(lt(x, y), one(), F::zero());)
GL_BINARY(Greater, 1, return select(gt(x, y), one(), F::zero());)

GL_BINARY(ReluBack, 1, return where_positive(y, x, F::zero());)
GL_BINARY(LeakyReluBack, 1, return where_positive(y, x, x * F::set1(p[0]));)
GL_BINARY(EluBack, 6, return where_positive(y, x, x * (F::set1(p[0]) * exp(y)));)
GL_BINARY(SigmoidBack, 1, return x * (y * (one() - y));)
GL_BINARY(TanhBack, 1, return x * ((one() - y) * (one() + y));)  // no cancellation near 1
GL_BINARY(GeluBack, 15, return x * mul_add(y, normal_density(y), normal_cdf(y));)
GL_BINARY(SiluBack, 7, const Logistic l(y); return x * (l.s * mul_add(y, l.rest, one()));)
GL_BINARY(ClampBack, 1, return select(ge(y, F::set1(p[0])) & le(y, F::set1(p[1])), x, F::zero());)
GL_BINARY(GeluTanhBack, 10,
          const Logistic l(gelu_tanh_2u(y));
          return x * mul_add(gelu_tanh_x_slope(y), l.s * l.rest, l.s);)
#undef GL_UNARY
#undef GL_BINARY

template <class Op> void loop1(const float* const* in, const int64_t* step, float* out, int64_t n, const float* p) {
  const float* x = in[0];
  const int64_t sx = step[0];
  int64_t i = 0;
  for (; i + F::N <= n; i += F::N, x += sx) Op::value(F::load(x), p).store(out + i);
  if (i < n) Op::value(F::load_n(x, static_cast<int>(n - i)), p).store_n(out + i, static_cast<int>(n - i));
}

template <class Op> void loop2(const float* const* in, const int64_t* step, float* out, int64_t n, const float* p) {
  const float *x = in[0], *y = in[1];
  const int64_t sx = step[0], sy = step[1];
  int64_t i = 0;
  for (; i + F::N <= n; i += F::N, x += sx, y += sy) Op::value(F::load(x), F::load(y), p).store(out + i);
  if (i < n) {
    const int r = static_cast<int>(n - i);
    Op::value(F::load_n(x, r), F::load_n(y, r), p).store_n(out + i, r);
  }
}

inline void loop_where(const float* const* in, const int64_t* step, float* out, int64_t n, const float*) {
  const float *c = in[0], *x = in[1], *y = in[2];
  int64_t i = 0;
  for (; i < n; i += F::N, c += step[0], x += step[1], y += step[2]) {
    const int r = n - i < F::N ? static_cast<int>(n - i) : F::N;
    select(ne(F::load_n(c, r), F::zero()), F::load_n(x, r), F::load_n(y, r)).store_n(out + i, r);
  }
}

constexpr int64_t kElementGrain = 1024;  // parts end on whole pages
inline uint32_t element_parts(int64_t n, int weight) {
  return parts_for(static_cast<double>(n) * weight, 65536, 64);
}

// An attribute that is a float lies as the bits of a double in one word.
struct Params {
  float p[2];
  explicit Params(const Call& c) {
    for (int i = 0; i < 2; i++) p[i] = i < c.attr_count ? static_cast<float>(c.attr_float(i)) : 0.0f;
  }
};

GL_CALLED void run_loop1(const Call& c, Loop loop, int part, int parts) {
  const Tensor &x = c[0], &y = c[1];
  const Params params(c);
  const Range r = part_range(y.size(), part, parts, kElementGrain);
  if (r.begin >= r.end) return;
  if (x.dense()) {
    const float* at = x.as<float>() + r.begin;
    const int64_t step = F::N;
    return loop(&at, &step, y.as<float>() + r.begin, r.end - r.begin, params.p);
  }
  const Tensor* in[1] = {&x};
  const float* data[1] = {x.as<float>()};
  walk_apply<1>(join_axes<1>(y.shape, y.rank, in), data, y.as<float>(), r.begin, r.end, loop, params.p);
}

inline bool same_shape(const Tensor& a, const Tensor& b) {
  if (a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; i++)
    if (a.shape[i] != b.shape[i]) return false;
  return true;
}

// Elements r of the output, written to `out`, which is where element `base` belongs.
GL_CALLED void apply2(const Call& c, Loop loop, Range r, float* out, int64_t base) {
  const Tensor &x = c[0], &y = c[1], &z = c[2];
  const Params params(c);
  if (r.begin >= r.end) return;
  const Tensor* in[2] = {&x, &y};
  const float* data[2] = {x.as<float>(), y.as<float>()};
  if (same_shape(x, z) && same_shape(y, z) && x.dense() && y.dense()) {
    const float* at[2] = {data[0] + r.begin, data[1] + r.begin};
    const int64_t step[2] = {F::N, F::N};
    return loop(at, step, out + (r.begin - base), r.end - r.begin, params.p);
  }
  walk_apply<2>(join_axes<2>(z.shape, z.rank, in), data, out - base, r.begin, r.end, loop, params.p);
}

template <class Op> void plan1(const Call& c, KernelPlan& plan) {
  plan.parts[0] = element_parts(c[1].size(), Op::weight);
}
template <class Op> void run1(const Call& c, int, int part, int parts, void*) { run_loop1(c, loop1<Op>, part, parts); }

template <class Op> void plan2(const Call& c, KernelPlan& plan) {
  plan.parts[0] = element_parts(c[2].size(), Op::weight);
}
template <class Op> void run2(const Call& c, int, int part, int parts, void*) {
  apply2(c, loop2<Op>, part_range(c[2].size(), part, parts, kElementGrain), c[2].as<float>(), 0);
}

// A comparison: the loop's 0 and 1 go through a buffer and leave as bytes.
template <class Op> void run_compare(const Call& c, int, int part, int parts, void*) {
  const Range r = part_range(c[2].size(), part, parts, kElementGrain);
  uint8_t* to = c[2].as<uint8_t>();
  alignas(64) float room[kElementGrain];
  for (int64_t at = r.begin; at < r.end; at += kElementGrain) {
    const int64_t n = r.end - at < kElementGrain ? r.end - at : kElementGrain;
    apply2(c, loop2<Op>, {at, at + n}, room, at);
    for (int64_t i = 0; i < n; i++) to[at + i] = static_cast<uint8_t>(static_cast<int32_t>(room[i]));
  }
}

inline void plan_equal_i32(const Call& c, KernelPlan& plan) { plan.parts[0] = element_parts(c[2].size(), 1); }
inline void run_equal_i32(const Call& c, int, int part, int parts, void*) {
  const Tensor &x = c[0], &y = c[1], &z = c[2];
  const Tensor* in[2] = {&x, &y};
  const Axes<2> axes = join_axes<2>(z.shape, z.rank, in);
  const int last = axes.rank - 1;
  const int64_t sx = axes.stride[0][last], sy = axes.stride[1][last];
  Range r = part_range(z.size(), part, parts, kElementGrain);
  if (r.begin >= r.end) return;
  for (RowWalk<2> walk(axes, r.begin); r.begin < r.end; walk.next_row()) {
    int64_t n = axes.shape[last] - walk.column;
    if (n > r.end - r.begin) n = r.end - r.begin;
    const int32_t* a = x.as<int32_t>() + walk.offset[0] + walk.column * sx;
    const int32_t* b = y.as<int32_t>() + walk.offset[1] + walk.column * sy;
    uint8_t* to = z.as<uint8_t>() + r.begin;
    for (int64_t i = 0; i < n; i++) to[i] = a[i * sx] == b[i * sy];
    r.begin += n;
  }
}

// x read as if it had the output's shape.
inline Tensor spread(const Tensor& x, const Tensor& out) {
  Tensor t = out;
  t.data = x.data;
  t.dtype = x.dtype;
  for (int i = 0; i < out.rank; i++) {
    const int j = i - (out.rank - x.rank);
    t.strides[i] = j < 0 || x.shape[j] == 1 ? 0 : x.strides[j];
  }
  return t;
}

// Elements [begin, end) of x as a dense run: x's own bytes where they are one, else `room`.
template <class T> inline const T* dense_run(const Tensor& x, bool dense, int64_t begin, int64_t end, T* room) {
  if (dense) return x.as<T>() + begin;
  fetch(x, begin, end, room);
  return room;
}

inline void plan_where(const Call& c, KernelPlan& plan) { plan.parts[0] = element_parts(c[3].size(), 3); }
inline void run_where(const Call& c, int, int part, int parts, void*) {
  const Tensor &z = c[3], cond = spread(c[0], z), x = spread(c[1], z), y = spread(c[2], z);
  const bool dense[3] = {cond.dense(), x.dense(), y.dense()};
  const Range r = part_range(z.size(), part, parts, kElementGrain);
  uint8_t bytes[kElementGrain];
  alignas(64) float room[3][kElementGrain];
  for (int64_t at = r.begin; at < r.end; at += kElementGrain) {
    const int64_t end = r.end - at < kElementGrain ? r.end : at + kElementGrain;
    const uint8_t* b = dense_run(cond, dense[0], at, end, bytes);
    for (int64_t i = 0; i < end - at; i++) room[0][i] = b[i] ? 1.0f : 0.0f;
    const float* in[3] = {room[0], dense_run(x, dense[1], at, end, room[1]), dense_run(y, dense[2], at, end, room[2])};
    const int64_t step[3] = {F::N, F::N, F::N};
    loop_where(in, step, z.as<float>() + at, end - at, nullptr);
  }
}

// ---- cast ---------------------------------------------------------------------------------------------------

// Plain loops, which the compiler turns into vectors; only halves need the vocabulary. 16-bit floats travel as their
// bits in a struct of their own, so that each pair of types is one template.
struct Half { uint16_t bits; };
struct Bfloat { uint16_t bits; };

template <class S, class D> inline void convert(const S* x, D* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = static_cast<D>(x[i]);
}
template <> inline void convert<float, int32_t>(const float* x, int32_t* y, int64_t n) {
  for (int64_t i = 0; i < n; i += F::N) {
    const int r = n - i < F::N ? static_cast<int>(n - i) : F::N;
    to_i32(F::load_n(x + i, r)).store_n(y + i, r);
  }
}
template <> inline void convert<int64_t, int32_t>(const int64_t* x, int32_t* y, int64_t n) {  // saturates
  for (int64_t i = 0; i < n; i++) {
    const int64_t above = x[i] < INT32_MIN ? INT32_MIN : x[i];
    y[i] = static_cast<int32_t>(above > INT32_MAX ? INT32_MAX : above);
  }
}
inline const uint16_t* raw(const Half* x) { return &x->bits; }
inline const uint16_t* raw(const Bfloat* x) { return &x->bits; }
inline uint16_t* raw(Half* x) { return &x->bits; }
inline uint16_t* raw(Bfloat* x) { return &x->bits; }
template <> inline void convert<Half, float>(const Half* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + F::N <= n; i += F::N) load_f16(raw(x + i)).store(y + i);
  if (i < n) load_f16_n(raw(x + i), static_cast<int>(n - i)).store_n(y + i, static_cast<int>(n - i));
}
template <> inline void convert<Bfloat, float>(const Bfloat* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + F::N <= n; i += F::N) load_bf16(raw(x + i)).store(y + i);
  if (i < n) load_bf16_n(raw(x + i), static_cast<int>(n - i)).store_n(y + i, static_cast<int>(n - i));
}
template <> inline void convert<float, Half>(const float* x, Half* y, int64_t n) {
  int64_t i = 0;
  for (; i + F::N <= n; i += F::N) store_f16(raw(y + i), F::load(x + i));
  const int r = static_cast<int>(n - i);
  if (r) store_f16_n(raw(y + i), F::load_n(x + i, r), r);
}
template <> inline void convert<float, Bfloat>(const float* x, Bfloat* y, int64_t n) {
  int64_t i = 0;
  for (; i + F::N <= n; i += F::N) store_bf16(raw(y + i), F::load(x + i));
  const int r = static_cast<int>(n - i);
  if (r) store_bf16_n(raw(y + i), F::load_n(x + i, r), r);
}

inline void plan_cast(const Call& c, KernelPlan& plan) { plan.parts[0] = element_parts(c[1].size(), 1); }
template <class S, class D> void run_cast(const Call& c, int, int part, int parts, void*) {
  const Tensor &x = c[0], &y = c[1];
  const bool dense = x.dense();
  const Range r = part_range(y.size(), part, parts, kElementGrain);
  S room[kElementGrain];
  for (int64_t at = r.begin; at < r.end; at += kElementGrain) {
    const int64_t end = r.end - at < kElementGrain ? r.end : at + kElementGrain;
    convert(dense_run(x, dense, at, end, room), y.as<D>() + at, end - at);
  }
}

#define GL_ROW1(name, Op) {name, "f32", plan1<Op>, run1<Op>}
#define GL_ROW2(name, Op) {name, "f32", plan2<Op>, run2<Op>}
#define GL_COMPARE(name, Op) {name, "f32_u8", plan2<Op>, run_compare<Op>}
#define GL_CAST(signature, S, D) {"cast", signature, plan_cast, run_cast<S, D>}
inline constexpr KernelRow kElementwiseRows[] = {
    GL_ROW1("neg", Neg), GL_ROW1("abs", Abs), GL_ROW1("sgn", Sgn), GL_ROW1("step", Step), GL_ROW1("sqr", Sqr),
    GL_ROW1("sqrt", Sqrt), GL_ROW1("exp", Exp), GL_ROW1("exp2", Exp2), GL_ROW1("expm1", Expm1), GL_ROW1("log", Log),
    GL_ROW1("sin", Sin),
    GL_ROW1("log1p", Log1p), GL_ROW1("erf", Erf), GL_ROW1("floor", Floor), GL_ROW1("ceil", Ceil),
    GL_ROW1("round", Round), GL_ROW1("trunc", Trunc), GL_ROW2("remainder", Remainder),
    GL_ROW1("cos", Cos), GL_ROW1("relu", Relu), GL_ROW1("leaky_relu", LeakyRelu), GL_ROW1("elu", Elu),
    GL_ROW1("sigmoid", Sigmoid), GL_ROW1("tanh", Tanh), GL_ROW1("gelu", Gelu), GL_ROW1("gelu_tanh", GeluTanh),
    GL_ROW1("silu", Silu), GL_ROW1("softplus", Softplus), GL_ROW1("clamp", Clamp), GL_ROW1("scale", Scale),
    GL_ROW2("add", Add), GL_ROW2("sub", Sub), GL_ROW2("mul", Mul), GL_ROW2("div", Div), GL_ROW2("pow", Pow),
    GL_ROW2("maximum", Maximum), GL_ROW2("minimum", Minimum),
    GL_ROW2("relu_back", ReluBack), GL_ROW2("leaky_relu_back", LeakyReluBack), GL_ROW2("elu_back", EluBack),
    GL_ROW2("sigmoid_back", SigmoidBack), GL_ROW2("tanh_back", TanhBack), GL_ROW2("gelu_back", GeluBack),
    GL_ROW2("gelu_tanh_back", GeluTanhBack), GL_ROW2("silu_back", SiluBack), GL_ROW2("clamp_back", ClampBack),
    GL_COMPARE("equal", Equal), GL_COMPARE("less", Less), GL_COMPARE("greater", Greater),
    {"equal", "i32_u8", plan_equal_i32, run_equal_i32},
    {"where", "u8_f32", plan_where, run_where},
    GL_CAST("u8_f32", uint8_t, float), GL_CAST("i8_f32", int8_t, float), GL_CAST("i32_f32", int32_t, float),
    GL_CAST("i64_f32", int64_t, float), GL_CAST("f64_f32", double, float), GL_CAST("f16_f32", Half, float),
    GL_CAST("f32_f16", float, Half), GL_CAST("bf16_f32", Bfloat, float), GL_CAST("f32_bf16", float, Bfloat),
    GL_CAST("f32_i32", float, int32_t), GL_CAST("i64_i32", int64_t, int32_t), GL_CAST("u8_i32", uint8_t, int32_t),
    {"round_bf16", "f32_bf16", plan_cast, run_cast<float, Bfloat>},
};
#undef GL_ROW1
#undef GL_ROW2
#undef GL_COMPARE
#undef GL_CAST

}  // namespace gradloom::GL_ISA::elementwise
