// linear_product.wgsl: the products of linear_loss.py on one chunk of the listed rows, of which some may be missing.
//
// Arguments: A, B, C, list. Words behind those of product.wgsl: the chunk's first row, its size, whether the product is added to
// C, the first number of K. $NEEDED: whether a tile has work; $COUNT: how much of K; $PLACE: the element of C(i, j), or ABSENT.
// `rows`: of the chunk.
var<workgroup> present: u32;

@compute @workgroup_size($THREADS)
fn linear_product(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                  @builtin(local_invocation_index) lane: u32) {
  let group = group_of(wid, nwg);
  if (group >= call.groups) { return; }
  if (lane == 0u) { present = min(max(u32(at_3(0u)), word(9u)) - word(9u), word(10u)); }
  let rows = workgroupUniformLoad(&present);
  let i0 = group / word(3u) * TALL;
  let j0 = group % word(3u) * WIDE;
  if (!($NEEDED)) { return; }
  from_a = word(12u) * word(6u);
  from_b = word(12u) * word(8u);
  tile_product(lane, i0, j0, $COUNT);
  for (var r = 0u; r < $HEIGHTu; r++) {
    let i = i0 + row_of(lane, r);
    for (var c = 0u; c < $WIDTHu; c++) {
      let j = j0 + column_of(lane, c);
      if (j >= word(1u)) { continue; }
      let at = $PLACE;
      if (at == ABSENT) { continue; }
      let v = $SUM;
      if (word(11u) == 1u) { set_2(at, at_2(at) + v); } else { set_2(at, v); }
    }
  }
}
