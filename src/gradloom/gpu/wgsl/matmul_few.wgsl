// matmul_few.wgsl: matmul, matmul_act, matmul_relu_back of at most 4 rows, as generation has them: a workgroup per $ACROSS columns of
// C. $DEEP threads share a column's K, so that neighbouring threads read neighbouring numbers of B; their sums are added in a
// fixed tree. $COLUMN, $PART: which column, which part of K is a thread's.
//
// Arguments and words as in matmul.wgsl; the tiles of words 3 and 4 are here one row of $ACROSS columns each.
var<workgroup> partial: array<vec4<f32>, 256>;

fn left(e: u32) -> f32 { return $LEFT; }
fn right(e: u32) -> f32 { return $RIGHT; }

@compute @workgroup_size(256)
fn matmul_few(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
              @builtin(local_invocation_index) lane: u32) {
  let group = group_of(wid, nwg);
  if (group >= call.groups) { return; }
  let m = word(0u);
  let n = word(1u);
  let matrix = group / word(3u);
  let j = group % word(3u) * $ACROSSu + $COLUMN;
  let begin = begins(matrix);
  var sums = vec4<f32>(0.0, 0.0, 0.0, 0.0);
  if (j < n) {
    for (var p = $PART; p < word(2u); p += $DEEPu) {
      let y = right(begin.y + j * word(7u) + p * word(8u));
      for (var i = 0u; i < m; i++) { sums[i] = fma(left(begin.x + i * word(5u) + p * word(6u)), y, sums[i]); }
    }
  }
  partial[$PART * $ACROSSu + $COLUMN] = sums;
  workgroupBarrier();
  for (var half = $DEEPu / 2u; half > 0u; half = half >> 1u) {
    if ($PART < half) { partial[$PART * $ACROSSu + $COLUMN] += partial[($PART + half) * $ACROSSu + $COLUMN]; }
    workgroupBarrier();
  }
  if ($PART != 0u || j >= n) { return; }
  for (var i = 0u; i < m; i++) {
    let at = (matrix * m + i) * n + j;
    let bias = j;
    let z = partial[$COLUMN][i];
    set_2(at, $FINISH);
  }
}
