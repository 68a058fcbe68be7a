// matmul.wgsl: matmul, matmul_act, matmul_relu_back, convolutions: a workgroup per tile of C, per matrix of the batch, per share of K.
//
// Arguments: x, y, z, then bias or h. $FINISH: what z(i, j), number `at` of the output, becomes in the end; $BIAS: the place of its bias. Words behind
// those of product.wgsl: how much of K is a share, matrices, batch axes, then extent, x's stride, y's stride of each axis, the
// innermost first (of convolutions: see conv.wgsl). Shares lie one behind the other in z.
// begin(matrix, first): what is summed begins there; place_of(slot, i, j): the element of z(i, j), in the slot of its matrix and share.
@compute @workgroup_size($THREADS)
fn matmul(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
  let group = group_of(wid, nwg);
  if (group >= call.groups) { return; }
  let slot = group / (word(3u) * word(4u));
  let first = slot / word(10u) * word(9u);
  let i0 = group / word(3u) % word(4u) * TALL;
  let j0 = group % word(3u) * WIDE;
  begin(slot % word(10u), first);
  tile_product(lane, i0, j0, min(word(9u), word(2u) - min(first, word(2u))));
  for (var r = 0u; r < $HEIGHTu; r++) {
    let i = i0 + row_of(lane, r);
    for (var c = 0u; c < $WIDTHu; c++) {
      let j = j0 + column_of(lane, c);
      if (i < word(0u) && j < word(1u)) {
        let at = place_of(slot, i, j);
        let z = $SUM;
        let bias = $BIAS;
        set_2(at, $FINISH);
      }
    }
  }
}
