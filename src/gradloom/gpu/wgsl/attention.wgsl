// attention.wgsl: what the kernels of attention share: which keys a query sees, and tiles of 32 queries by 32 keys.
//
// FlashAttention-2 (Dao 2023): no T x T matrix. A workgroup of 16 x 16 threads holds a tile of scores, 2 x 2 of them in each
// thread: queries y, y + 16 and keys x, x + 16 of thread 16 y + x; products run over 16 dimensions at a time.
//
// Arguments: q, k, v, positions, ... Words: T H D S KVH, 1 where keys are those of a cache, window (ABSENT: none), scale,
// softcap (0: none), blocks of a head, pieces of 256 dimensions.
const STEP = 17u;   // numbers from row to row of a tile of 16 dimensions

var<workgroup> tile_a: array<f32, 544>;    // 32 * STEP
var<workgroup> tile_b: array<f32, 544>;
var<workgroup> weights: array<f32, 1024>;  // [query][key]
var<workgroup> first: array<i32, 32>;      // key that each query sees
var<workgroup> last: array<i32, 32>;
var<workgroup> span: vec2<u32>;            // the keys that some query sees: begin, end
var<private> score: array<f32, 4>;         // (y, x), (y, x + 16), (y + 16, x), (y + 16, x + 16)

// Fills first, last and span of the block of queries from t0 on.
fn look(lane: u32, b: u32, t0: u32) -> vec2<u32> {
  workgroupBarrier();
  if (lane < 32u) {
    let s = seen(b, t0 + lane);
    first[lane] = s.first;
    last[lane] = s.last;
  }
  workgroupBarrier();
  if (lane == 0u) {
    var low = 0x7fffffff;
    var high = -1;
    for (var i = 0u; i < 32u; i++) {
      low = min(low, first[i]);
      high = max(high, last[i]);
    }
    span = vec2<u32>(u32(low), u32(high + 1));
  }
  return workgroupUniformLoad(&span);
}
fn sees(i: u32, key: u32) -> bool { return i32(key) >= first[i] && i32(key) <= last[i]; }

fn query_place(b: u32, h: u32, t: u32, d: u32) -> u32 { return ((b * word(0u) + t) * word(1u) + h) * word(2u) + d; }
fn key_place(b: u32, n: u32, s: u32, d: u32) -> u32 { return ((b * word(3u) + s) * word(4u) + n) * word(2u) + d; }
fn q_at(b: u32, h: u32, t: u32, d: u32) -> f32 {
  if (t >= word(0u) || d >= word(2u)) { return 0.0; }
  return at_0(query_place(b, h, t, d));
}
fn k_at(b: u32, n: u32, s: u32, d: u32) -> f32 {
  if (s >= word(3u) || d >= word(2u)) { return 0.0; }
  return key_of(key_place(b, n, s, d));
}
fn v_at(b: u32, n: u32, s: u32, d: u32) -> f32 {
  if (s >= word(3u) || d >= word(2u)) { return 0.0; }
  return value_of(key_place(b, n, s, d));
}

// score += A B^T over the 16 dimensions of the tiles
fn add_tiles(lane: u32) {
  let x = lane & 15u;
  let y = lane >> 4u;
  for (var d = 0u; d < 16u; d++) {
    let a0 = tile_a[y * STEP + d];
    let a1 = tile_a[(y + 16u) * STEP + d];
    let b0 = tile_b[x * STEP + d];
    let b1 = tile_b[(x + 16u) * STEP + d];
    score[0] = fma(a0, b0, score[0]);
    score[1] = fma(a0, b1, score[1]);
    score[2] = fma(a1, b0, score[2]);
    score[3] = fma(a1, b1, score[3]);
  }
}
// score = softcap(scale * Q K^T) of the queries from t0 on and the keys from s0 on.
fn scores(lane: u32, b: u32, h: u32, n: u32, t0: u32, s0: u32) {
  for (var j = 0u; j < 4u; j++) { score[j] = 0.0; }
  for (var d0 = 0u; d0 < word(2u); d0 += 16u) {
    workgroupBarrier();
    for (var t = lane; t < 512u; t += 256u) {
      tile_a[t / 16u * STEP + t % 16u] = q_at(b, h, t0 + t / 16u, d0 + t % 16u);
      tile_b[t / 16u * STEP + t % 16u] = k_at(b, n, s0 + t / 16u, d0 + t % 16u);
    }
    workgroupBarrier();
    add_tiles(lane);
  }
  let cap = param(8u);
  for (var j = 0u; j < 4u; j++) {
    score[j] *= param(7u);
    if (cap != 0.0) { score[j] = cap * tanh_(score[j] / cap); }
  }
}
