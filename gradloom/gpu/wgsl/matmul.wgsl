// matmul.wgsl: matmul, matmul_act, matmul_relu_back: a workgroup per tile of C, per matrix of the batch.
//
// Arguments: x, y, z, then bias or h. $FINISH: what z(i, j), number `at` of the output, becomes in the end. Words behind
// those of product.wgsl: how many batch axes, then extent, x's stride, y's stride of each, the innermost first.
@compute @workgroup_size(256)
fn matmul(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
  let group = group_of(wid, nwg);
  if (group >= call.groups) { return; }
  let m = word(0u);
  let n = word(1u);
  let matrix = group / (word(3u) * word(4u));
  let i0 = group / word(3u) % word(4u) * (16u * $HEIGHTu);
  let j0 = group % word(3u) * (16u * $WIDTHu);
  var a = 0u;
  var b = 0u;
  var rest = matrix;
  for (var axis = 0u; axis < word(9u); axis++) {
    let at = rest % word(10u + 3u * axis);
    rest /= word(10u + 3u * axis);
    a += at * word(11u + 3u * axis);
    b += at * word(12u + 3u * axis);
  }
  tile_product(lane, i0, j0, a, b, word(2u));
  for (var r = 0u; r < $HEIGHTu; r++) {
    let i = i0 + (lane >> 4u) + 16u * r;
    for (var c = 0u; c < $WIDTHu; c++) {
      let j = j0 + (lane & 15u) + 16u * c;
      if (i < m && j < n) {
        let at = (matrix * m + i) * n + j;
        let z = sums[r * $WIDTHu + c];
        set_2(at, $FINISH);
      }
    }
  }
}

fn relu(z: f32) -> f32 { return select(z, 0.0, z < 0.0); }  // NaN stays
