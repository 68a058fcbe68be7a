// tree_plain.wgsl: all rounds of tree.wgsl go through workgroup memory.
const APART = 0u;
fn spot() -> u32 { return 0u; }
fn pair_f(v: f32, half: u32) -> vec2<f32> { return vec2<f32>(v, v); }
fn pair_u(v: u32, half: u32) -> vec2<u32> { return vec2<u32>(v, v); }
