// correct_rows.wgsl: the label of a row is its first largest number. See correct.wgsl.
fn label_of(r: u32) -> u32 {
  let row = r * word(0u);
  var best = 0u;
  for (var c = 1u; c < word(0u); c++) {
    if (beats(at_1(row + c), at_1(row + best))) { best = c; }
  }
  return best;
}
