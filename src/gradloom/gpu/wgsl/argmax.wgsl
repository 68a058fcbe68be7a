// argmax.wgsl: position of the first maximum along one axis; NaN counts as the maximum. A thread per output.
// Arguments: the output (flat), x over the kept axes. word 0: elements along the axis; word 1: its stride.
@compute @workgroup_size(256)
fn argmax(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
  let o = group_of(wid, nwg) * 256u + lane;
  if (o >= size_0() || word(0u) == 0u) { return; }
  let begin = offset(1u, o);
  var best = at_1(begin);
  var place = 0u;
  for (var i = 1u; i < word(0u) && !is_nan(best); i++) {
    let x = at_1(begin + i * word(1u));
    if (is_nan(x) || x > best) {
      best = x;
      place = i;
    }
  }
  set_0(o, i32(place));
}
