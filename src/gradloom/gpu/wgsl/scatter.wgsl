// scatter.wgsl: row ids[i] of y is the sum of the g[i], in the order of i; y is 0 before. A workgroup per i: that of the
// first i of an id adds all. Arguments: y, g, ids. word 0: width; word 1: rows of y; word 2: how many ids.
@compute @workgroup_size(256)
fn scatter(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
           @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg);
  if (i >= word(2u)) { return; }
  let id = at_2(i);
  var before = ABSENT;
  for (var j = lane; j < i; j += 256u) {
    if (at_2(j) == id) { before = 0u; }
  }
  let first = first_256(lane, before) == ABSENT;
  if (!first || id < 0 || u32(id) >= word(1u)) { return; }
  for (var c = lane; c < word(0u); c += 256u) {
    var sum = at_1(i * word(0u) + c);
    for (var j = i + 1u; j < word(2u); j++) {
      if (at_2(j) == id) { sum += at_1(j * word(0u) + c); }
    }
    set_0(u32(id) * word(0u) + c, sum);
  }
}
