// softmax_back.wgsl: dx = scale y (g - sum(g y)), or g - exp(y) sum(g) for the logarithm. A workgroup per row.
// Arguments: dx, g, y. word 0: elements of a row; word 1: rows; param 2: the scale.
@compute @workgroup_size(256)
fn back(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let r = group_of(wid, nwg);
  if (r >= word(1u)) { return; }
  var part = 0.0;
  for (var i = lane; i < word(0u); i += 256u) {
    let e = r * word(0u) + i;
    part += $TERM;
  }
  let sum = sum_256(lane, part);
  for (var i = lane; i < word(0u); i += 256u) {
    let e = r * word(0u) + i;
    set_0(e, $RESULT);
  }
}
