// attention_delta.wgsl: sum(g * y) of each query of each head, less g_lse. Arguments: g, y, g_lse, delta. Word: D.
@compute @workgroup_size(256)
fn attention_delta(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                   @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (i >= size_3()) { return; }
  var sum = 0.0;
  for (var d = i * word(0u); d < (i + 1u) * word(0u); d++) { sum = fma(at_0(d), at_1(d), sum); }
  if (HAS_2) { sum -= at_2(i); }
  set_3(i, sum);
}
