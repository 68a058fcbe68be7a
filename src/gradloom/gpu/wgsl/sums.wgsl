// sums.wgsl: the sums of the two columns of [rows][2], each in a fixed tree. One workgroup. Arguments: the rows, two numbers.
@compute @workgroup_size(256)
fn sum_pairs(@builtin(local_invocation_index) lane: u32) {
  var a = 0.0;
  var b = 0.0;
  for (var r = lane; r < size_0() / 2u; r += 256u) {
    a += at_0(2u * r);
    b += at_0(2u * r + 1u);
  }
  a = sum_256(lane, a);
  b = sum_256(lane, b);
  if (lane == 0u) {
    set_1(0u, a);
    set_2(0u, b);
  }
}
