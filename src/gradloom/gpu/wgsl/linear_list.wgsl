// linear_list.wgsl: the rows that count: those with a class as label whose weight is not 0. One workgroup.
//
// Arguments: labels, weights, list (how many, then which), sums [rows][2] (weighted loss, so far 0; weight of rows whose label is
// a class). Word: classes.
@compute @workgroup_size(256)
fn list_rows(@builtin(local_invocation_index) lane: u32) {
  let n = size_0();
  var before = 0u;  // rows found in the blocks so far
  for (var first = 0u; first < n; first += 256u) {
    let r = first + lane;
    var counts = 0u;
    if (r < n) {
      let id = at_0(r);
      let known = id >= 0 && u32(id) < word(0u);
      var weight = 1.0;
      if (HAS_1) { weight = at_1(r); }
      counts = select(0u, 1u, known && weight != 0.0);
      set_3(2u * r, 0.0);
      set_3(2u * r + 1u, select(0.0, weight, known));
    }
    tree_u[lane] = counts;
    workgroupBarrier();
    for (var step = 1u; step < 256u; step = step << 1u) {  // sums of all up to each thread's own
      var more = 0u;
      if (lane >= step) { more = tree_u[lane - step]; }
      workgroupBarrier();
      tree_u[lane] += more;
      workgroupBarrier();
    }
    if (counts == 1u) { set_2(before + tree_u[lane], i32(r)); }
    before += tree_u[255];
    workgroupBarrier();
  }
  if (lane == 0u) { set_2(0u, i32(before)); }
}
