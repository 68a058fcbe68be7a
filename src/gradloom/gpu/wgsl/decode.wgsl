// decode.wgsl: numbers of halves and quantised blocks as f32. $NUMBER: number e of argument 1. Arguments: y, x.
fn number(e: u32) -> f32 { return $NUMBER; }

@compute @workgroup_size(256)
fn decode(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (i < size_0()) { set_0(i, number(offset(1u, i))); }
}
