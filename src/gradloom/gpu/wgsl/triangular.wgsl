// triangular.wgsl: a x = b for a triangle a, a thread per column of b. Arguments: x, a, b over matrices and columns.
// word 0: rows; word 1: the stride of rows in x; words 2 and 3: strides of rows and columns in a; word 4: of rows in b;
// word 5: 1 for a lower triangle; word 6: 1 for a diagonal of ones.
@compute @workgroup_size(256)
fn solve(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
         @builtin(local_invocation_index) lane: u32) {
  let t = group_of(wid, nwg) * 256u + lane;
  if (t >= size_0()) { return; }
  let n = word(0u);
  let to = offset(0u, t);
  let from_a = offset(1u, t);
  let from_b = offset(2u, t);
  let upper = word(5u) == 0u;
  for (var k = 0u; k < n; k++) {
    let i = select(k, n - 1u - k, upper);
    let row = from_a + i * word(2u);
    var sum = at_2(from_b + i * word(4u));
    for (var l = 0u; l < k; l++) {
      let j = select(l, n - 1u - l, upper);
      sum = keep(sum - at_1(row + j * word(3u)) * at_0(to + j * word(1u)));
    }
    if (word(6u) == 0u) { sum = divided(sum, at_1(row + i * word(3u))); }
    set_0(to + i * word(1u), sum);
  }
}
