// matmul_batch.wgsl: where a matrix of the batch begins. Words: see matmul.wgsl.

// (elements before A(0, 0), before B(0, 0)) of a matrix of the batch.
fn begins(matrix: u32) -> vec2<u32> {
  var found = vec2<u32>(0u, 0u);
  var rest = matrix;
  for (var axis = 0u; axis < word(11u); axis++) {
    let at = rest % word(12u + 3u * axis);
    rest /= word(12u + 3u * axis);
    found += at * vec2<u32>(word(13u + 3u * axis), word(14u + 3u * axis));
  }
  return found;
}
