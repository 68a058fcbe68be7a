// recurrence.wgsl: y[0] = b[0], y[i] = a[i] y[i - 1] + b[i] along one axis, a thread per line. Arguments: y, a, b over
// the other axes. word 0: elements along the axis; words 1 to 3: its strides in y, a, b; word 4: 1 for backwards.
@compute @workgroup_size(256)
fn recurrence(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
              @builtin(local_invocation_index) lane: u32) {
  let line = group_of(wid, nwg) * 256u + lane;
  if (line >= size_0()) { return; }
  let to = offset(0u, line);
  let from_a = offset(1u, line);
  let from_b = offset(2u, line);
  var y = 0.0;
  for (var j = 0u; j < word(0u); j++) {
    let i = select(j, word(0u) - 1u - j, word(4u) != 0u);
    let b = at_2(from_b + i * word(3u));
    if (j == 0u) { y = b; } else { y = keep(keep(at_1(from_a + i * word(2u)) * y) + b); }
    set_0(to + i * word(1u), y);
  }
}
