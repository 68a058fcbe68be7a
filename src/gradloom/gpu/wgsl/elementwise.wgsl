// elementwise.wgsl: one element in, one element out; the formula $VALUE is that of the op in kernels/elementwise.py.

fn where_positive(x: f32, a: f32, b: f32) -> f32 { return select(b, a, x > 0.0); }
fn root(x: f32) -> f32 {
  if (is_nan(x) || x == 0.0 || bitcast<u32>(x) == 0x7f800000u) { return x; }
  if (x < 0.0) { return nan(); }
  if (bitcast<u32>(x) < 0x800000u) { return sqrt(f32(bitcast<u32>(x))) * 3.743392066e-23; }  // a denormal: times 2^-74.5
  return sqrt(x);
}
fn value(x: f32, y: f32) -> f32 { return $VALUE; }

// Arguments: the output, then the inputs. $SECOND: the second input's element, or 0.
@compute @workgroup_size(256)
fn map(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
       @builtin(local_invocation_index) lane: u32) {
  let i = group_of(wid, nwg) * 256u + lane;
  if (i >= size_0()) { return; }
  set_0(i, value(at_1(offset(1u, i)), $SECOND));
}
