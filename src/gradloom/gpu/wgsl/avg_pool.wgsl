// avg_pool.wgsl: the mean of each window, padding as zeros; and its gradient. Arguments: x, y; or g, dx. See pool.wgsl.
@compute @workgroup_size(256)
fn avg_pool(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
            @builtin(local_invocation_index) lane: u32) {
  let at = group_of(wid, nwg) * 256u + lane;
  if (at >= size_1()) { return; }
  let image = at / (word(2u) * word(3u)) * word(0u) * word(1u);
  var z = 0.0;
  for (var k = 0u; k < word(4u) * word(5u); k++) {
    let found = under(at / word(3u) % word(2u), at % word(3u), k / word(5u), k % word(5u));
    if (found != ABSENT) { z += at_0(image + found); }
  }
  set_1(at, z / f32(word(4u) * word(5u)));
}

@compute @workgroup_size(256)
fn avg_pool_back(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                 @builtin(local_invocation_index) lane: u32) {
  let at = group_of(wid, nwg) * 256u + lane;
  if (at >= size_1()) { return; }
  let image = at / (word(0u) * word(1u)) * word(2u) * word(3u);
  var z = 0.0;
  for (var ky = 0u; ky < word(4u); ky++) {
    let oy = window(at / word(1u) % word(0u) + word(8u), ky, word(6u), word(2u));
    for (var kx = 0u; kx < word(5u); kx++) {
      let ox = window(at % word(1u) + word(9u), kx, word(7u), word(3u));
      if (oy != ABSENT && ox != ABSENT) { z += at_0(image + oy * word(3u) + ox); }
    }
  }
  set_1(at, z / f32(word(4u) * word(5u)));
}
