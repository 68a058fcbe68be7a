// norm_end.wgsl: the norm from the sums of squares; stops the run where it or the loss is not finite.
// Arguments: norm, the sums, weight, loss. One workgroup.
@compute @workgroup_size(256)
fn norm_end(@builtin(local_invocation_index) lane: u32) {
  var part = 0.0;
  for (var i = lane; i < size_1(); i += 256u) { part += at_1(i); }
  let total = sum_256(lane, part);
  if (lane != 0u) { return; }
  let weight = at_2(0u);
  let norm = select(divided(sqrt(total), weight), 0.0, weight == 0.0);
  set_0(0u, norm);
  if (HAS_3) {
    let loss = at_3(0u);
    if (!finite(loss)) { fail(STOP_GUARD, 0u, bitcast<u32>(loss), 0u); }
    else if (!finite(total) || !finite(norm * norm)) { fail(STOP_GUARD, 1u, bitcast<u32>(total), 0u); }
  }
}
