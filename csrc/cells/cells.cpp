#include "cells.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <locale>
#include <sstream>
#include <stdexcept>

namespace gradloom {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Bytes of the white space that begins (or ends) here in UTF-8, a byte order mark among it, as files that are joined
// have inside; 0 where there is none.
size_t blank_at(const unsigned char* s, size_t n) {
  if (n == 0) return 0;
  const unsigned char a = s[0];
  if (a == ' ' || (a >= 9 && a <= 13) || (a >= 28 && a <= 31)) return 1;
  if (n >= 2 && a == 0xC2 && (s[1] == 0x85 || s[1] == 0xA0)) return 2;
  if (n < 3) return 0;
  const unsigned char b = s[1], c = s[2];
  if (a == 0xE1 && b == 0x9A && c == 0x80) return 3;
  if (a == 0xE2 && b == 0x80 && ((c >= 0x80 && c <= 0x8A) || c == 0xA8 || c == 0xA9 || c == 0xAF)) return 3;
  if (a == 0xE2 && b == 0x81 && c == 0x9F) return 3;
  if (a == 0xE3 && b == 0x80 && c == 0x80) return 3;
  if (a == 0xEF && b == 0xBB && c == 0xBF) return 3;
  return 0;
}

// Whether the cell is one of the marks of a missing value; letters in either case.
bool is_mark(std::string_view cell) {
  static constexpr std::string_view marks[] = {
      "na",    "n/a",    "n.a.",   "nan",     "+nan",    "-nan",   "null",   "none",  "nil",   "?",       "-", "--",
      "---",   ".",      "..",     "...",     "#n/a",    "#na",    "#null!", "#num!", "#ref!", "#value!", "<na>",
      "#name?", "#div/0!", "missing", "\xE2\x80\x93", "\xE2\x80\x94"};
  if (cell.size() > 7) return false;
  char low[8];
  for (size_t i = 0; i < cell.size(); i++) low[i] = cell[i] >= 'A' && cell[i] <= 'Z' ? char(cell[i] + 32) : cell[i];
  const std::string_view lowered(low, cell.size());
  for (std::string_view mark : marks)
    if (mark == lowered) return true;
  return false;
}

// inf or 0: what a number is that no double holds.
double beyond(std::string_view text) {
  int64_t exponent = 0;
  const size_t e = text.find_first_of("eE");
  if (e != text.npos) {
    const bool below = e + 1 < text.size() && text[e + 1] == '-';
    for (size_t i = e + 1; i < text.size(); i++)
      if (is_digit(text[i]) && exponent < 1'000'000'000) exponent = exponent * 10 + (text[i] - '0');
    exponent = below ? -exponent : exponent;
  }
  const std::string_view digits = text.substr(0, e);
  const size_t point = std::min(digits.find('.'), digits.size()), first = digits.find_first_of("123456789");
  if (first == digits.npos) return 0.0;
  return static_cast<int64_t>(point) - static_cast<int64_t>(first) + exponent > 0
             ? std::numeric_limits<double>::infinity() : 0.0;
}

// The whole text as a number without sign: digits with a point and an exponent. False: it is none.
bool parse_plain(std::string_view text, double& value) {
  const size_t digit = text.empty() || text[0] != '.' ? 0 : 1;
  if (digit >= text.size() || !is_digit(text[digit])) return false;
#if defined(__cpp_lib_to_chars) || (defined(_LIBCPP_VERSION) && _LIBCPP_AVAILABILITY_HAS_FROM_CHARS_FLOATING_POINT)
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::general);
  if (end != text.data() + text.size()) return false;
  if (error == std::errc::result_out_of_range) value = beyond(text);
  return true;
#else
  if (text.find_first_not_of("0123456789.eE+-") != text.npos) return false;
  std::istringstream stream{std::string(text)};
  stream.imbue(std::locale::classic());
  stream >> value;
  if (stream.fail() && !std::isinf(value) && value == 0 && text.find_first_of("123456789") == text.npos) return false;
  if (stream.fail() && std::fpclassify(value) != FP_SUBNORMAL) value = beyond(text);  // older libc++ fails for these
  return stream.eof();
#endif
}

// Whether groups of three digits, cut by `mark`, make up the text; no number begins with a group of zeros.
bool is_grouped(std::string_view text, char mark) {
  size_t first = text.find(mark);
  if (first == text.npos || first == 0 || first > 3 || text[0] == '0') return false;
  for (size_t i = 0; i < text.size(); i++) {
    const bool cut = i >= first && (i - first) % 4 == 0;
    if (cut ? text[i] != mark : !is_digit(text[i])) return false;
  }
  return (text.size() - first) % 4 == 0;
}

std::string without(std::string_view text, char mark) {
  std::string made;
  for (char c : text)
    if (c != mark) made += c;
  return made;
}

// Whether a whole number, written with as many digits as the text, is another one than the text says.
bool is_rounded(std::string_view digits, double value) {
  const size_t first = digits.find_first_not_of('0'), last = digits.find_last_not_of('0');
  if (first == digits.npos || last - first < 15 || std::isinf(value)) return std::isinf(value);
  digits = digits.substr(first, last - first + 1);
  std::string written(digits.size() + 32, 0);
  std::snprintf(written.data(), written.size(), "%.*e", static_cast<int>(digits.size()) - 1, value);
  return written[0] != digits[0] || std::string_view(written).substr(2, digits.size() - 1) != digits.substr(1);
}

// Digits alone, and more of them than one: 007 and 9007199254740993 are codes.
Code code_of(std::string_view text, double value) {
  const std::string_view digits = text.substr(!text.empty() && (text[0] == '-' || text[0] == '+'));
  if (digits.size() < 2 || digits.find_first_not_of("0123456789") != digits.npos) return no_code;
  if (text[0] == '0') return leading_zero;
  return is_rounded(digits, std::abs(value)) ? many_digits : no_code;
}

struct UnitText {
  std::string_view text;
  Unit unit;
};
constexpr UnitText kUnits[] = {{"$", dollar}, {"\xE2\x82\xAC", euro}, {"\xC2\xA3", pound}, {"\xC2\xA5", yen}};

void trim_left(std::string_view& text) {
  while (const size_t n = blank_at(reinterpret_cast<const unsigned char*>(text.data()), text.size()))
    text.remove_prefix(n);
}

bool take_sign(std::string_view& text, bool& negative) {
  if (text.empty() || (text[0] != '-' && text[0] != '+')) return false;
  negative = text[0] == '-';
  text.remove_prefix(1);
  return true;
}

// (1234.50) as -1234.50.
bool take_brackets(std::string_view& text, bool& negative) {
  if (text.size() < 3 || text.front() != '(' || text.back() != ')') return false;
  text = stripped(text.substr(1, text.size() - 2));
  negative = true;
  return true;
}

// A cell that is no plain number: with a unit, commas, brackets, or a word for infinity.
Cell read_other(std::string_view text, Commas commas) {
  Cell cell;
  bool negative = false;
  cell.in_brackets = take_brackets(text, negative);
  const bool has_sign = cell.in_brackets || take_sign(text, negative);
  for (const UnitText& one : kUnits) {
    if (text.substr(0, one.text.size()) == one.text) {
      text.remove_prefix(one.text.size());
      trim_left(text);
      if (!has_sign && !take_sign(text, negative)) cell.in_brackets = take_brackets(text, negative);
      cell.unit = one.unit;
      break;
    }
  }
  if (cell.unit == no_unit) {
    const UnitText percents[] = {{"%", percent}, kUnits[0], kUnits[1], kUnits[2], kUnits[3]};
    for (const UnitText& one : percents) {
      if (text.size() > one.text.size() && text.substr(text.size() - one.text.size()) == one.text) {
        text = stripped(text.substr(0, text.size() - one.text.size()));
        cell.unit = one.unit;
        break;
      }
    }
  }
  std::string held;
  const size_t comma = text.find(',');
  if (comma != text.npos) {
    const size_t point = text.find('.');
    const std::string_view whole = text.substr(0, point);
    const bool grouped = is_grouped(whole, ',');  // with digits behind the point, or without
    const bool sure = grouped && (point != text.npos || text.find(',', comma + 1) != text.npos);
    if (grouped && (sure || commas == Commas::point)) {
      held = without(text, ',');
      cell.groups = true;
    } else if (commas == Commas::comma && text.find(',', comma + 1) == text.npos &&
               (point == text.npos || (point < comma && is_grouped(text.substr(0, comma), '.')))) {
      cell.one_group = grouped;
      held = without(text, '.');
      held[held.find(',')] = '.';
    } else {
      return cell;
    }
    text = held;
  }
  double value;
  if (!parse_plain(text, value)) {
    std::string low;
    for (char c : text.substr(0, 9)) low += c >= 'A' && c <= 'Z' ? char(c + 32) : c;
    if (cell.unit != no_unit || cell.in_brackets || (low != "inf" && low != "infinity")) return cell;
    value = std::numeric_limits<double>::infinity();
  }
  cell.kind = Cell::number;
  cell.value = negative ? -value : value;
  const size_t point = text.find('.');
  if (text.find_first_of("eEnN") == text.npos && text.size() <= 22)
    cell.decimals = point == text.npos ? 0 : static_cast<int8_t>(text.size() - point - 1);
  return cell;
}

}  // namespace

std::string_view stripped(std::string_view cell) {
  const auto plain = [](char c) { return c > ' ' && c < 127; };
  if (cell.empty() || (plain(cell.front()) && plain(cell.back()))) return cell;
  const auto* s = reinterpret_cast<const unsigned char*>(cell.data());
  size_t begin = 0, end = cell.size();
  while (begin < end) {
    const size_t n = blank_at(s + begin, end - begin);
    if (n == 0) break;
    begin += n;
  }
  while (begin < end) {
    size_t n = 0;
    for (size_t length = 1; length <= 3 && length <= end - begin && !n; length++)
      if (blank_at(s + end - length, length) == length) n = length;
    if (n == 0) break;
    end -= n;
  }
  return cell.substr(begin, end - begin);
}

// The number of up to 15 digits and the power of ten are exact, so the quotient is the nearest double.
bool read_plain(const char*& p, const char* end, Cell& cell) {
  const char* const text = p;
  const bool negative = p != end && *p == '-';
  if (negative || (p != end && *p == '+')) p++;
  const char* const first = p;
  uint64_t digits = 0;
  while (p != end && is_digit(*p) && p - first < 16) digits = digits * 10 + uint64_t(*p++ - '0');
  int64_t count = p - first, behind = 0;
  const bool has_point = p != end && *p == '.';
  if (has_point) {
    const char* const point = p++;
    while (p != end && is_digit(*p) && p - first < 17) digits = digits * 10 + uint64_t(*p++ - '0');
    behind = p - point - 1;
    count += behind;
  }
  if (count == 0 || count > 15) return false;
  cell.kind = Cell::number;
  const double value = behind ? static_cast<double>(digits) / kPowers[behind] : static_cast<double>(digits);
  cell.value = negative ? -value : value;
  cell.decimals = static_cast<int8_t>(behind);
  cell.code = first == text && count > 1 && *first == '0' && !has_point ? leading_zero : no_code;
  return true;
}

Cell read_cell(std::string_view text, Commas commas) {
  Cell cell;
  if (text.empty()) {
    cell.kind = Cell::missing;
    return cell;
  }
  const char* p = text.data();
  if (read_plain(p, p + text.size(), cell) && p == text.data() + text.size()) return cell;
  cell = {};
  if (is_mark(text)) {
    cell.kind = Cell::missing;
    return cell;
  }
  cell = read_other(text, commas);
  if (cell.kind == Cell::number) cell.code = code_of(text, cell.value);
  return cell;
}

// ---- texts ------------------------------------------------------------------------------------------------------------

std::string_view Texts::at(size_t i) const {
  const uint64_t begin = i ? ends_[i - 1] : 0;
  return std::string_view(bytes_).substr(begin, ends_[i] - begin);
}

int32_t Texts::code(std::string_view text) {
  if (slots_.size() < 2 * (ends_.size() + 1)) grow();
  const size_t mask = slots_.size() - 1;
  size_t slot = std::hash<std::string_view>{}(text) & mask;
  for (; slots_[slot]; slot = (slot + 1) & mask)
    if (at(slots_[slot] - 1) == text) return static_cast<int32_t>(slots_[slot] - 1);
  if (ends_.size() >= INT32_MAX) throw std::length_error("2147483647 different texts in a column");
  bytes_.append(text);
  ends_.push_back(bytes_.size());
  slots_[slot] = static_cast<uint32_t>(ends_.size());
  return static_cast<int32_t>(ends_.size() - 1);
}

void Texts::grow() {
  std::vector<uint32_t> made(slots_.empty() ? 16 : 2 * slots_.size());
  const size_t mask = made.size() - 1;
  for (size_t i = 0; i < ends_.size(); i++) {
    size_t slot = std::hash<std::string_view>{}(at(i)) & mask;
    while (made[slot]) slot = (slot + 1) & mask;
    made[slot] = static_cast<uint32_t>(i + 1);
  }
  slots_.swap(made);
}

// ---- words that are declared missing ----------------------------------------------------------------------------------

MissingWords::MissingWords(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    words_.emplace_back(stripped(word));
    const Cell cell = read_cell(words_.back(), Commas::point);
    numbers_.push_back(cell.kind == Cell::number && cell.unit == no_unit ? cell.value : kNan);
    has_numbers_ |= !std::isnan(numbers_.back());
  }
}

const std::string* MissingWords::find(double number) const {
  for (size_t i = 0; has_numbers_ && i < words_.size(); i++)
    if (numbers_[i] == number) return &words_[i];
  return nullptr;
}

const std::string* MissingWords::find(std::string_view cell, Commas commas) const {
  for (const std::string& word : words_)
    if (word == cell) return &word;
  if (!has_numbers_) return nullptr;
  const Cell read = read_cell(cell, commas);
  return read.kind == Cell::number && read.unit == no_unit ? find(read.value) : nullptr;
}

// ---- a column ---------------------------------------------------------------------------------------------------------

void CellColumn::begin(Mode made, Commas said, std::shared_ptr<const MissingWords> declared) {
  mode = made;
  commas = made == grouped_numbers ? Commas::point : said;
  declared_ = std::move(declared);
}

void CellColumn::add_mark(std::string_view text) {
  const size_t code = static_cast<size_t>(marks.code(text));
  of_mark.resize(marks.count());
  of_mark[code]++;
}

void CellColumn::add(const Cell& cell) {
  if (declared_ && cell.kind == Cell::number && cell.unit == no_unit) [[unlikely]] {
    if (const std::string* word = declared_->find(cell.value)) {
      add_mark(*word);
      values.push_back(kNan);
      rows++;
      return;
    }
  }
  if (cell.kind == Cell::text) {
    first_text = rows++;
    mode = skip;  // it has to be read again, as texts
    values = {};
    return;
  }
  if (cell.kind == Cell::missing) {
    values.push_back(kNan);
  } else {
    values.push_back(cell.value);
    if (cell.decimals < 0) decimals = -1;
    else if (decimals >= 0 && cell.decimals > decimals) decimals = cell.decimals;
    if (cell.code != no_code && first_code < 0) first_code = rows;
    if (cell.in_brackets) [[unlikely]] in_brackets++;
    one_group |= cell.one_group;
    groups |= cell.groups;
    if (!of_unit[cell.unit]++) first_of_unit[cell.unit] = rows;
  }
  rows++;
}

void CellColumn::add(std::string_view text) {
  if (mode != exact_texts) text = stripped(text);
  switch (mode) {
    case skip:
      rows++;
      return;
    case texts:
      if (declared_) [[unlikely]] {
        if (const std::string* word = declared_->find(text, commas)) {
          add_mark(*word);
          text = {};
        }
      }
      [[fallthrough]];
    case exact_texts:
      codes.push_back(seen.code(text));
      rows++;
      return;
    default:
      Cell cell = read_cell(text, commas);
      if (cell.kind == Cell::text && declared_ && declared_->find(text, commas)) cell.kind = Cell::missing;
      if (cell.kind == Cell::missing && !text.empty()) add_mark(text);
      add(cell);
  }
}

void CellColumn::clear(size_t taken) {
  values.clear();
  codes.clear();
  if (takes_texts()) codes.reserve(taken);
  else if (mode != skip) values.reserve(taken);
  decimals = 0;
}

}  // namespace gradloom
