// cumsum.wgsl: running sums along one axis, a thread per line. Arguments: y and x over the other axes. word 0: elements
// along the axis; words 1 and 2: its strides in y and x; word 3: 1 for sums from the end. What a sum loses in f32 is
// summed separately (Neumaier 1974).
@compute @workgroup_size(256)
fn cumsum(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
  let line = group_of(wid, nwg) * 256u + lane;
  if (line >= size_0()) { return; }
  let to = offset(0u, line);
  let begin = offset(1u, line);
  var sum = 0.0;
  var lost = 0.0;
  for (var j = 0u; j < word(0u); j++) {
    let i = select(j, word(0u) - 1u - j, word(3u) != 0u);
    let x = at_1(begin + i * word(2u));
    let next = keep(sum + x);
    let added = keep(next - sum);
    lost += keep(keep(sum - keep(next - added)) + keep(x - added));
    sum = next;
    let whole_sum = keep(sum + lost);
    set_0(to + i * word(1u), select(sum, whole_sum, finite(lost)));
  }
}
