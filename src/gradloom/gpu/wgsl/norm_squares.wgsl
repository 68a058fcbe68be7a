// norm_squares.wgsl: sums of squares of all gradients, and the guard.

// Arguments: one gradient, its place in the workspace. A workgroup takes word 0 elements.
@compute @workgroup_size(256)
fn squares(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
           @builtin(local_invocation_index) lane: u32) {
  let g = group_of(wid, nwg);
  let end = min((g + 1u) * word(0u), size_0());
  var part = 0.0;
  for (var i = g * word(0u) + lane; i < end; i += 256u) {
    let x = at_0(i);
    part = fma(x, x, part);
  }
  let sum = sum_256(lane, part);
  if (lane == 0u && g < call.groups) { set_1(g, sum); }
}
