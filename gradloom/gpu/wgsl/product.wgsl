// product.wgsl: a tile of a matrix product C[M, N] = A[M, K] B[K, N], for the kernels that are products.
//
// A workgroup of 16 x 16 threads makes a tile of 16 $HEIGHT x 16 $WIDTH numbers, $HEIGHT x $WIDTH of them in each thread.
// K is taken DEPTH numbers at a time through workgroup memory: the sum over one such block is added to the sum of those
// before it, always in this order. Operands are addressed by strides and decoded as they are read ($LEFT and $RIGHT are
// number e of A and of B), so transposes, broadcast axes, halves and quantised blocks cost no copy.
//
// Words: M N K, columns of tiles, rows of tiles, elements along A's rows and along K, along B's columns and along K.
const DEPTH = 16u;
const STEP = 65u;  // numbers from row to row of a tile in workgroup memory: no two threads share a bank

var<workgroup> tile_a: array<f32, 1040>;  // DEPTH * STEP
var<workgroup> tile_b: array<f32, 1040>;
var<private> sums: array<f32, $HEIGHT * $WIDTH>;

fn left(e: u32) -> f32 { return $LEFT; }
fn right(e: u32) -> f32 { return $RIGHT; }

// sums[r * $WIDTH + c] = C(i0 + y + 16 r, j0 + x + 16 c) of thread 16 y + x, over the first k numbers of K. a, b: elements
// before A(0, 0) and B(0, 0). All threads call it together.
fn tile_product(lane: u32, i0: u32, j0: u32, a: u32, b: u32, k: u32) {
  let m = word(0u);
  let n = word(1u);
  let x = lane & 15u;
  let y = lane >> 4u;
  for (var s = 0u; s < $HEIGHTu * $WIDTHu; s++) { sums[s] = 0.0; }
  for (var p0 = 0u; p0 < k; p0 += DEPTH) {
    // Neighbouring threads read neighbouring numbers: along K where these lie side by side, else along the tile.
    for (var t = lane; t < 256u * $HEIGHTu; t += 256u) {
      let by_k = word(6u) == 1u;
      let p = select(t / (16u * $HEIGHTu), t % DEPTH, by_k);
      let i = select(t % (16u * $HEIGHTu), t / DEPTH, by_k);
      var v = 0.0;
      if (i0 + i < m && p0 + p < k) { v = left(a + (i0 + i) * word(5u) + (p0 + p) * word(6u)); }
      tile_a[p * STEP + i] = v;
    }
    for (var t = lane; t < 256u * $WIDTHu; t += 256u) {
      let by_k = word(8u) == 1u;
      let p = select(t / (16u * $WIDTHu), t % DEPTH, by_k);
      let j = select(t % (16u * $WIDTHu), t / DEPTH, by_k);
      var v = 0.0;
      if (j0 + j < n && p0 + p < k) { v = right(b + (j0 + j) * word(7u) + (p0 + p) * word(8u)); }
      tile_b[p * STEP + j] = v;
    }
    workgroupBarrier();
    var block: array<f32, $HEIGHT * $WIDTH>;
    for (var s = 0u; s < $HEIGHTu * $WIDTHu; s++) { block[s] = 0.0; }
    for (var p = 0u; p < DEPTH; p++) {
      for (var r = 0u; r < $HEIGHTu; r++) {
        let v = tile_a[p * STEP + y + 16u * r];
        for (var c = 0u; c < $WIDTHu; c++) {
          block[r * $WIDTHu + c] = fma(v, tile_b[p * STEP + x + 16u * c], block[r * $WIDTHu + c]);
        }
      }
    }
    for (var s = 0u; s < $HEIGHTu * $WIDTHu; s++) { sums[s] += block[s]; }
    workgroupBarrier();
  }
}
