// max_pool.wgsl: the largest of each window and its position; the first of equal ones, NaN is largest; the padding never counts.
// Arguments: x, y, index. A thread makes four neighbours: a word of index. See pool.wgsl.
@compute @workgroup_size(256)
fn max_pool(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
            @builtin(local_invocation_index) lane: u32) {
  let w = group_of(wid, nwg) * 256u + lane;
  var positions = 0u;
  var mask = 0u;
  for (var j = 0u; j < 4u; j++) {
    let at = 4u * w + j;
    if (at >= size_1()) { break; }
    let image = at / (word(2u) * word(3u)) * word(0u) * word(1u);
    var best = 0.0;
    var place = ABSENT;
    for (var k = 0u; k < word(4u) * word(5u); k++) {
      let found = under(at / word(3u) % word(2u), at % word(3u), k / word(5u), k % word(5u));
      if (found == ABSENT) { continue; }
      let x = at_0(image + found);
      if (place == ABSENT || (!is_nan(best) && (is_nan(x) || x > best))) {
        best = x;
        place = k;
      }
    }
    set_1(at, best);
    positions |= (place & 255u) << (8u * j);
    mask |= 255u << (8u * j);
  }
  if (HAS_2 && mask != 0u) { put_part_2(w, positions, mask); }
}
