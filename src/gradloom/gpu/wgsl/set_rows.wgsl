// set_rows.wgsl: rows into a cache, from a position along an axis. Arguments: cache, rows, position.
// word 0: elements behind the axis; word 1: rows along it; word 2: the cache's length along it.
@compute @workgroup_size(256)
fn set_rows(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
            @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (stopped()) { return; }
  let p = $POSITION;  // low, high
  if (p.y != 0u || p.x > word(2u) - word(1u)) {
    if (i == 0u) { fail(STOP_INDEX, 0u, p.x, p.y); }
    return;
  }
  if (i >= size_1()) { return; }
  let outer = i / (word(1u) * word(0u));
  let inside = i - outer * word(1u) * word(0u);
  put_0((outer * word(2u) + p.x) * word(0u) + inside, get_1(i));
}
