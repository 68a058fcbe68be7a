// conv_forward.wgsl: y = act(sum over the window and the input channels of x * w, + bias). Arguments: x, w, bias, y.
// $FINISH: what the sum of output channel o becomes. See conv.wgsl.

@compute @workgroup_size(256)
fn conv(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let at = group_of(wid, nwg) * 256u + lane;
  if (at >= size_3()) { return; }
  let ox = at % word(5u);
  let oy = at / word(5u) % word(4u);
  let o = at / (word(5u) * word(4u)) % word(3u);
  let n = at / (word(5u) * word(4u) * word(3u));
  var z = 0.0;
  for (var i = 0u; i < word(0u); i++) {
    let image = (n * word(0u) + i) * word(1u) * word(2u);
    let kernel = (o * word(0u) + i) * word(6u) * word(7u);
    for (var ky = 0u; ky < word(6u); ky++) {
      for (var kx = 0u; kx < word(7u); kx++) {
        let found = under(oy, ox, ky, kx);
        if (found != ABSENT) { z = fma(at_0(image + found), at_1(kernel + ky * word(7u) + kx), z); }
      }
    }
  }
  set_3(at, $FINISH);
}
