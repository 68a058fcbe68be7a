// random.wgsl: dropout with the numbers of csrc/kernels/random.h: Philox4x32-10. A thread per block of four elements of a row.
// Arguments: y, x, seed, step, row. words: width of a row; rows; stream low, high; threshold; 1 where all are kept;
// param 6: 1 / (1 - rate).

fn philox(counter: vec4<u32>, seed: vec2<u32>) -> vec4<u32> {
  var c = counter;
  var key = seed;
  for (var round = 0u; round < 10u; round++) {
    c = vec4<u32>(
      mul_high(0xCD9E8D57u, c.z) ^ c.y ^ key.x, 0xCD9E8D57u * c.z, mul_high(0xD2511F53u, c.x) ^ c.w ^ key.y,
      0xD2511F53u * c.x,
    );
    key = key + vec2<u32>(0x9E3779B9u, 0xBB67AE85u);
  }
  return c;
}

@compute @workgroup_size(256)
fn dropout(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
           @builtin(local_invocation_index) lane: u32) {
  let blocks = (word(0u) + 3u) / 4u;
  let q = group_of(wid, nwg) * 256u + lane;
  if (q >= blocks * word(1u)) { return; }
  let r = q / blocks;
  let b = q - r * blocks;
  let step = at_3(0u);
  let key = philox(vec4<u32>(step.x, step.y, word(2u), word(3u)), at_2(0u)).xy;
  let first = at_4(0u);
  let row = first.x + r;
  let words = philox(vec4<u32>(row, first.y + select(0u, 1u, row < r), b, 0u), key);
  for (var k = 0u; k < 4u && 4u * b + k < word(0u); k++) {
    let i = r * word(0u) + 4u * b + k;
    let x = at_1(offset(1u, i)) * param(6u);
    set_0(i, select(0.0, x, word(5u) == 1u || words[k] < word(4u)));
  }
}
