// conv_back_input.wgsl: dx of a convolution: each number of x gathers from the windows that it lies under. Arguments: g, w, dx.
// Words as in conv.wgsl.
@compute @workgroup_size(256)
fn conv_back_input(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                   @builtin(local_invocation_index) lane: u32) {
  let at = group_of(wid, nwg) * 256u + lane;
  if (at >= size_2()) { return; }
  let x = at % word(2u) + word(11u);
  let y = at / word(2u) % word(1u) + word(10u);
  let i = at / (word(2u) * word(1u)) % word(0u);
  let n = at / (word(2u) * word(1u) * word(0u));
  var z = 0.0;
  for (var ky = 0u; ky < word(6u); ky++) {
    let down = y - min(y, ky * word(12u));
    if (ky * word(12u) > y || down % word(8u) != 0u || down / word(8u) >= word(4u)) { continue; }
    for (var kx = 0u; kx < word(7u); kx++) {
      let right = x - min(x, kx * word(13u));
      if (kx * word(13u) > x || right % word(9u) != 0u || right / word(9u) >= word(5u)) { continue; }
      for (var o = 0u; o < word(3u); o++) {
        let g = at_0(((n * word(3u) + o) * word(4u) + down / word(8u)) * word(5u) + right / word(9u));
        z = fma(g, at_1(((o * word(0u) + i) * word(6u) + ky) * word(7u) + kx), z);
      }
    }
  }
  set_2(at, z);
}
