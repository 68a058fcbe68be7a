// matmul_begin.wgsl: where a matrix of the batch, and a share of K, begins. See matmul.wgsl.

fn begin(matrix: u32, first: u32) {
  let found = begins(matrix);
  from_a = found.x + first * word(6u);
  from_b = found.y + first * word(8u);
}
fn place_of(slot: u32, i: u32, j: u32) -> u32 { return (slot * word(0u) + i) * word(1u) + j; }
