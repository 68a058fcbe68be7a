// max_pool_back.wgsl: each g goes to the number that was picked. Arguments: g, index, dx. See pool.wgsl.
@compute @workgroup_size(256)
fn max_pool_back(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                 @builtin(local_invocation_index) lane: u32) {
  let at = group_of(wid, nwg) * 256u + lane;
  if (at >= size_2()) { return; }
  let image = at / (word(0u) * word(1u)) * word(2u) * word(3u);
  var z = 0.0;
  for (var ky = 0u; ky < word(4u); ky++) {
    let oy = window(at / word(1u) % word(0u) + word(8u), ky, word(6u), word(2u));
    for (var kx = 0u; kx < word(5u); kx++) {
      let ox = window(at % word(1u) + word(9u), kx, word(7u), word(3u));
      if (oy == ABSENT || ox == ABSENT) { continue; }
      let found = image + oy * word(3u) + ox;
      if (u32(at_1(found)) == ky * word(5u) + kx) { z += at_0(found); }
    }
  }
  set_2(at, z);
}
