// attention_seen.wgsl: which keys a query sees. Argument 3 and the words are those of attention.wgsl.
const NOTHING = -3e38;  // the largest of no scores
fn as_operand(x: f32) -> f32 { return from_bf16(bf16_bits(x)); }
fn key_of(e: u32) -> f32 { return $KEY; }
fn value_of(e: u32) -> f32 { return $VALUE; }

struct Seen { first: i32, last: i32 }
fn seen(b: u32, t: u32) -> Seen {
  let tokens = word(0u);
  if (t >= tokens) { return Seen(0x7fffffff, -1); }
  let cached = word(5u) == 1u;
  let p = at_3(b * tokens + t);
  if (p < 0 || u32(p) > select(t, word(3u) - 1u, cached)) { return Seen(0, 0); }  // the run stops for it
  let end = select(i32(t), p, cached);
  var before = u32(p);
  if (word(6u) != ABSENT) { before = min(before, word(6u) - 1u); }
  return Seen(end - i32(before), end);
}
