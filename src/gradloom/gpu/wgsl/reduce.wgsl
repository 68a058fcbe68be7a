// reduce.wgsl: sums, means, maxima, minima over some axes: $START, $MERGE(a, b), $FINISH(total, count).
// Arguments: the output (flat), x over the kept axes, x over the folded ones, the workspace.
// word 0: elements folded into each output; word 1: slices per output.

const BLOCK = 32u;

fn element(o: u32, i: u32) -> f32 { return at_1(offset(1u, o) + offset(2u, i)); }

// Elements begin, begin + step, ... below end of output o; in blocks, so that errors do not grow with their number.
fn fold(o: u32, begin: u32, end: u32, step: u32) -> f32 {
  var total = $START;
  var i = begin;
  loop {
    if (i >= end) { break; }
    var part = $START;
    for (var k = 0u; k < BLOCK && i < end; k++) {
      part = $MERGE(part, element(o, i));
      i += step;
    }
    total = $MERGE(total, part);
  }
  return total;
}
fn add(a: f32, b: f32) -> f32 { return a + b; }
fn as_is(total: f32, count: u32) -> f32 { return total; }
fn mean_of(total: f32, count: u32) -> f32 {
  if (count == 0u) { return nan(); }
  return divided(total, f32(count));
}

// A thread per output: short folds, and folds down columns.
@compute @workgroup_size(256)
fn by_thread(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
             @builtin(local_invocation_index) lane: u32) {
  let o = group_of(wid, nwg) * 256u + lane;
  if (o < size_0()) { set_0(o, $FINISH(fold(o, 0u, word(0u), 1u), word(0u))); }
}
