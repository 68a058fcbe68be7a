// matmul_join.wgsl: the shares of K of a product, added in their order. Arguments: shares, shares, z, then bias or h; $FINISH as in
// matmul.wgsl. Words: numbers of z, shares, numbers of z with one number of the bias, how many of these.

@compute @workgroup_size(256)
fn matmul_join(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
               @builtin(local_invocation_index) lane: u32) {
  let at = group_of(wid, nwg) * 256u + lane;
  if (at >= word(0u)) { return; }
  let bias = at / word(2u) % word(3u);
  var z = 0.0;
  for (var s = 0u; s < word(1u); s++) { z += at_0(s * word(0u) + at); }
  set_2(at, $FINISH);
}
