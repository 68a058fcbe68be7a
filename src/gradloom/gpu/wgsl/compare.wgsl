// compare.wgsl: 1 where $VALUE holds of x and y, else 0, as bytes. A thread makes the four bytes of a word.
// Arguments: the output, x, y.
@compute @workgroup_size(256)
fn compare(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
           @builtin(local_invocation_index) lane: u32) {
  let w = group_of(wid, nwg) * 256u + lane;
  var bytes = 0u;
  var mask = 0u;
  for (var b = 0u; b < 4u; b++) {
    let i = 4u * w + b;
    if (i >= size_0()) { break; }
    let x = at_1(offset(1u, i));
    let y = at_2(offset(2u, i));
    bytes |= select(0u, 1u, $VALUE) << (8u * b);
    mask |= 0xffu << (8u * b);
  }
  if (mask != 0u) { put_part_0(w, bytes, mask); }
}
