// product.wgsl: a tile of a matrix product C[M, N] = A[M, K] B[K, N], for the kernels that are products.
//
// A workgroup of $DOWN x $ACROSS threads makes a tile of $DOWN $HEIGHT x $ACROSS $WIDTH numbers, $HEIGHT x $WIDTH of them in each thread:
// rows $DOWN apart, columns side by side. K is taken DEPTH numbers at a time through workgroup memory: the sum over one such
// block is added to the sum of those before it, always in this order, whatever the tile. left_at(i, p) and right_at(j, p) are
// A(i, p) and B(p, j), decoded as they are read: by strides (strided.wgsl), or gathered from images (conv.wgsl).
//
// Words: M N K, columns of tiles, rows of tiles, elements along A's rows and along K, along B's columns and along K. Words 6 and 8
// are 1 where neighbours along K lie side by side.
const DEPTH = 16u;
const THREADS = $DOWNu * $ACROSSu;
const TALL = $DOWNu * $HEIGHTu;
const WIDE = $ACROSSu * $WIDTHu;
const STEP = TALL + 1u;  // numbers from row to row of A's tile in workgroup memory: no two threads share a bank

var<workgroup> tile_a: array<f32, DEPTH * STEP>;
var<workgroup> tile_b: array<$NUMBERS, DEPTH * $ACROSSu>;
var<private> sums: array<$NUMBERS, $HEIGHT>;

fn row_of(lane: u32, r: u32) -> u32 { return lane / $ACROSSu + $DOWNu * r; }
fn column_of(lane: u32, c: u32) -> u32 { return lane % $ACROSSu * $WIDTHu + c; }

// sums: C(i0 + row_of(r), j0 + column_of(c)) over the first k numbers of K; $SUM is the one of r and c. All threads call it together.
fn tile_product(lane: u32, i0: u32, j0: u32, k: u32) {
  let m = word(0u);
  let n = word(1u);
  let x = lane % $ACROSSu;
  let y = lane / $ACROSSu;
  let a_by_k = word(6u) == 1u;
  let b_by_k = word(8u) == 1u;
  sums = array<$NUMBERS, $HEIGHT>();
  for (var p0 = 0u; p0 < k; p0 += DEPTH) {
    // Neighbouring threads read neighbouring numbers: along K where these lie side by side, else along the tile.
    for (var t = lane; t < DEPTH * TALL; t += THREADS) {
      let p = select(t / TALL, t % DEPTH, a_by_k);
      let i = select(t % TALL, t / DEPTH, a_by_k);
      var v = 0.0;
      if (i0 + i < m && p0 + p < k) { v = left_at(i0 + i, p0 + p); }
      tile_a[p * STEP + i] = v;
    }
    for (var t = lane; t < DEPTH * $ACROSSu; t += THREADS) {
      let p = select(t / $ACROSSu, t % DEPTH, b_by_k);
      let j = select(t % $ACROSSu, t / DEPTH, b_by_k);
      var v = $NUMBERS();
      if (p0 + p < k) {
$LOADS
      }
      tile_b[p * $ACROSSu + j] = v;
    }
    workgroupBarrier();
    var block = array<$NUMBERS, $HEIGHT>();
    for (var p = 0u; p < DEPTH; p++) {
      let b = tile_b[p * $ACROSSu + x];
      let a = p * STEP + y;
$PRODUCTS
    }
    for (var r = 0u; r < $HEIGHTu; r++) { sums[r] += block[r]; }
    workgroupBarrier();
  }
}
