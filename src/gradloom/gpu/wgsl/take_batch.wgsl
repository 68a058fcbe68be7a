// take_batch.wgsl: y[i] = data[order[position + i]], converted. Arguments: y, data, order, position.
// word 0: width; word 1: rows of the data; word 2: numbers of the order; word 3: rows of y.

// The row of the data for row i of the batch, or ABSENT.
fn row_of(i: u32) -> u32 {
  let p = at_3(0u);
  let at = p.x + i;
  if (p.y != 0u || at < i || at >= word(2u)) { return ABSENT; }
  let id = at_2(at);
  if (id.y != 0u || id.x >= word(1u)) { return ABSENT; }
  return id.x;
}

@compute @workgroup_size(256)
fn take(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let e = group_of(wid, nwg) * 256u + lane;
  if (e >= size_0()) { return; }
  let i = e / word(0u);
  let row = row_of(i);
  if (row == ABSENT) { return; }
  let x = at_1(row * word(0u) + (e - i * word(0u)));
  set_0(e, $VALUE);
}

// The first row that is not there, or whose numbers do not fit, stops the run. One workgroup.
@compute @workgroup_size(256)
fn check_rows(@builtin(local_invocation_index) lane: u32) {
  var bad = ABSENT;
  for (var i = lane; i < word(3u); i += 256u) {
    if (row_of(i) == ABSENT) { bad = min(bad, i); }
  }
  let first = first_256(lane, bad);
  if (lane != 0u || first == ABSENT) { return; }
  let p = at_3(0u);
  let at = p.x + first;
  let carried = p.y + select(0u, 1u, at < first);
  if (carried == 0u && at < word(2u)) {
    let id = at_2(at);
    fail(STOP_INDEX, first, id.x, id.y);
  } else {
    fail(STOP_INDEX, first, at, carried);
  }
}
