// glu.wgsl: the gradients of gated linear units: dgate = g * up * act'(gate), dup = g * act(gate).
// Arguments: g, gate, up, dgate, dup. $VALUE, $SLOPE: the activation of x and its derivative. All inputs of an element are
// read before anything is written: outputs may lie in them.
fn activation(x: f32) -> f32 { return $VALUE; }
fn slope(x: f32) -> f32 { return $SLOPE; }

@compute @workgroup_size(256)
fn glu_back(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
            @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (i >= size_3()) { return; }
  let g = at_0(offset(0u, i));
  let gate = at_1(offset(1u, i));
  let up = at_2(offset(2u, i));
  set_3(i, g * up * slope(gate));
  set_4(i, g * activation(gate));
}
