// halves.wgsl: numbers as 16-bit ones: $BITS of each. A thread makes the two of a word. Arguments: the output, x.
@compute @workgroup_size(256)
fn halves(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
  let w = group_of(wid, nwg) * 256u + lane;
  let i = 2u * w;
  if (i >= size_0()) { return; }
  let low = at_1(offset(1u, i));
  var bits = $BITS(low) & 0xffffu;
  var mask = 0xffffu;
  if (i + 1u < size_0()) {
    let high = at_1(offset(1u, i + 1u));
    bits |= $BITS(high) << 16u;
    mask = 0xffffffffu;
  }
  put_part_0(w, bits, mask);
}
