// linear_product.wgsl: the products of linear_loss.py on one chunk of the listed rows, of which some may be missing.
//
// Arguments: A, B, C, list. Words behind those of product.wgsl: the chunk's first row, its size, whether the product is added to
// C, the first number of K. $NEEDED: whether a tile has work; $COUNT: how much of K; $PLACE: the element of C(i, j), or ABSENT.
// `rows`: of the chunk.
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
  tile_product(lane, i0, j0, word(12u) * word(6u), word(12u) * word(8u), $COUNT);
  for (var r = 0u; r < $HEIGHTu; r++) {
    let i = i0 + (lane >> 4u) + 16u * r;
    for (var c = 0u; c < $WIDTHu; c++) {
      let j = j0 + (lane & 15u) + 16u * c;
      if (j >= word(1u)) { continue; }
      let at = $PLACE;
      if (at == ABSENT) { continue; }
      let v = sums[r * $WIDTHu + c];
      if (word(11u) == 1u) { set_2(at, at_2(at) + v); } else { set_2(at, v); }
    }
  }
}
