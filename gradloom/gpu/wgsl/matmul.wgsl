// matmul.wgsl: matmul, matmul_act, matmul_relu_back: a workgroup per tile of C, per matrix of the batch, per share of K.
//
// Arguments: x, y, z, then bias or h. $FINISH: what z(i, j), number `at` of the output, becomes in the end. Words behind
// those of product.wgsl: how much of K is a share, matrices, batch axes, then extent, x's stride, y's stride of each axis, the
// innermost first. Shares lie one behind the other in z.
@compute @workgroup_size(256)
fn matmul(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
  let group = group_of(wid, nwg);
  if (group >= call.groups) { return; }
  let m = word(0u);
  let n = word(1u);
  let slot = group / (word(3u) * word(4u));
  let matrix = slot % word(10u);
  let first = slot / word(10u) * word(9u);
  let i0 = group / word(3u) % word(4u) * (16u * $HEIGHTu);
  let j0 = group % word(3u) * (16u * $WIDTHu);
  let begin = begins(matrix);
  tile_product(lane, i0, j0, begin.x + first * word(6u), begin.y + first * word(8u), min(word(9u), word(2u) - first));
  for (var r = 0u; r < $HEIGHTu; r++) {
    let i = i0 + (lane >> 4u) + 16u * r;
    for (var c = 0u; c < $WIDTHu; c++) {
      let j = j0 + (lane & 15u) + 16u * c;
      if (i < m && j < n) {
        let at = (slot * m + i) * n + j;
        let z = sums[r * $WIDTHu + c];
        set_2(at, $FINISH);
      }
    }
  }
}
