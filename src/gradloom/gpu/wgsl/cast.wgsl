// cast.wgsl: numbers of one dtype as those of another. Arguments: the output, x.

fn to_i32(x: f32) -> i32 {  // towards 0; what does not fit is the least number, as on the CPU
  if (!(abs(x) < 2147483648.0) || !finite(x)) { return bitcast<i32>(0x80000000u); }
  return i32(x);
}

@compute @workgroup_size(256)
fn convert(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (i >= size_0()) { return; }
  let x = at_1(offset(1u, i));
  set_0(i, $VALUE);
}
