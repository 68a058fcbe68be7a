// strided.wgsl: operands of a product by their strides, words 5 to 8 of product.wgsl. $LEFT and $RIGHT: number e of A and of B.
var<private> from_a: u32;  // the elements before A(0, 0), before B(0, 0)
var<private> from_b: u32;

fn left(e: u32) -> f32 { return $LEFT; }
fn right(e: u32) -> f32 { return $RIGHT; }
fn left_at(i: u32, p: u32) -> f32 { return left(from_a + i * word(5u) + p * word(6u)); }
fn right_at(j: u32, p: u32) -> f32 { return right(from_b + j * word(7u) + p * word(8u)); }
