// gather_back.wgsl: y[place of ids[i]] += g[i] in the order of i; y is 0 before. A thread per line along the axis.
// Arguments: y, g, ids, all dense. Words 0 to 2 as in gather.wgsl; word 3: lines.
@compute @workgroup_size(256)
fn gather_back(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
               @builtin(local_invocation_index) lane: u32) {
  let line = group_of(wid, nwg) * 256u + lane;
  if (line >= word(3u)) { return; }
  let outer = line / word(2u);
  let c = line - outer * word(2u);
  for (var j = 0u; j < word(1u); j++) {
    let i = (outer * word(1u) + j) * word(2u) + c;
    let id = at_2(i);
    if (id >= 0 && u32(id) < word(0u)) {
      let to = (outer * word(0u) + u32(id)) * word(2u) + c;
      set_0(to, at_0(to) + at_1(i));
    }
  }
}
