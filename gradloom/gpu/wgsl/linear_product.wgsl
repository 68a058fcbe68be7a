// linear_product.wgsl: the products of linear_loss.py on one chunk of the listed rows, of which some may be missing.
//
// Arguments: A, B, C, list. Words behind those of product.wgsl: the chunk's first row, its size, whether it is the first.
// $NEEDED: whether a tile has work; $COUNT: how much of K; $STORE: what happens with C(i, j) = v. `rows`: of the chunk.
var<workgroup> present: u32;

@compute @workgroup_size(256)
fn linear_product(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                  @builtin(local_invocation_index) lane: u32) {
  let group = group_of(wid, nwg);
  if (group >= call.groups) { return; }
  if (lane == 0u) { present = min(max(u32(at_3(0u)), word(9u)) - word(9u), word(10u)); }
  let rows = workgroupUniformLoad(&present);
  let i0 = group / word(3u) * (16u * $HEIGHTu);
  let j0 = group % word(3u) * (16u * $WIDTHu);
  if (!($NEEDED)) { return; }
  tile_product(lane, i0, j0, 0u, 0u, $COUNT);
  for (var r = 0u; r < $HEIGHTu; r++) {
    let i = i0 + (lane >> 4u) + 16u * r;
    for (var c = 0u; c < $WIDTHu; c++) {
      let j = j0 + (lane & 15u) + 16u * c;
      let v = sums[r * $WIDTHu + c];
      if (j < word(1u)) { $STORE }
    }
  }
}
