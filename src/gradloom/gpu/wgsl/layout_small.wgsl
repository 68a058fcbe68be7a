// layout_small.wgsl: move numbers of $BYTES bytes, read by $GET. A thread makes a word of the output.
@compute @workgroup_size(256)
fn move_small(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
              @builtin(local_invocation_index) lane: u32) {
  let w = group_of(wid, nwg) * 256u + lane;
  const each = 4u / $BYTESu;
  const ones = 0xffffffffu >> (32u - 8u * $BYTESu);
  var bits = 0u;
  var mask = 0u;
  for (var b = 0u; b < each; b++) {
    let i = each * w + b;
    if (i >= size_0()) { break; }
    bits |= $GET(offset(1u, i)) << (8u * $BYTESu * b);
    mask |= ones << (8u * $BYTESu * b);
  }
  if (mask != 0u) { put_part_0(w, bits, mask); }
}
