// argsort.wgsl: the position of each element in sorted order, a thread per element, which counts those before it.
// Arguments: y and x over the other axes. word 0: elements along the axis; word 1: those that are kept; words 2 and 3:
// the strides of the axis in y and x; word 4: all bits for descending order. Keys as in csrc/kernels/sort.h.

fn float_key(bits: u32) -> u32 {
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return 0xffffffffu; }
  if ((bits & 0x7fffffffu) == 0u) { return 0x80000000u; }
  return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}
fn whole_key(bits: u32) -> u32 { return bits ^ 0x80000000u; }

@compute @workgroup_size(256)
fn argsort(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
           @builtin(local_invocation_index) lane: u32) {
  let t = group_of(wid, nwg) * 256u + lane;
  let n = word(0u);
  if (t >= size_0() * n) { return; }
  let line = t / n;
  let i = t - line * n;
  let begin = offset(1u, line);
  let mine = $KEY(get_1(begin + i * word(3u))) ^ word(4u);
  var rank = 0u;
  for (var j = 0u; j < n; j++) {
    let key = $KEY(get_1(begin + j * word(3u))) ^ word(4u);
    if (key < mine || (key == mine && j < i)) { rank++; }
  }
  if (rank < word(1u)) { set_0(offset(0u, line) + rank * word(2u), i32(i)); }
}
