// cells.h: what the cell of a table is, a number, a missing value or a text, and columns of cells.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gradloom {

// Units that a number may have before or behind it.
enum Unit : uint8_t { no_unit, percent, dollar, euro, pound, yen, units };

// Why the digits of a whole number tell more than the number: 007, or more digits than a double keeps.
enum Code : uint8_t { no_code, leading_zero, many_digits };

struct Cell {
  enum Kind : uint8_t { number, missing, text } kind = text;
  Unit unit = no_unit;
  Code code = no_code;
  bool in_brackets = false;      // a negative number as accountants write it: (1234.50)
  bool one_group = false;        // one comma before three digits, read as a decimal comma: 1,234
  bool groups = false;           // commas that are groups of three for sure: 1,234,567 or 1,234.5
  int8_t decimals = -1;          // digits behind the point; -1: more than 22, or with an exponent
  double value = 0;
};

// How commas in numbers are read. point: 1,234 is 1234. comma: 1,5 is 1.5, and 1,234 is 1.234.
enum class Commas : uint8_t { point, comma };

// The bytes without white space (Unicode's) at both ends.
std::string_view stripped(std::string_view cell);

// Reads the number at p, at most 15 digits with a point, and moves p behind it. False: there is none such.
bool read_plain(const char*& p, const char* end, Cell& cell);

// What a stripped cell is. "", NA, #N/A, -, ? and the like are missing; inf is a number.
Cell read_cell(std::string_view cell, Commas commas);

// Different texts, numbered in the order of their first occurrence.
class Texts {
 public:
  int32_t code(std::string_view text);
  size_t count() const { return ends_.size(); }
  const std::string& bytes() const { return bytes_; }
  const std::vector<uint64_t>& ends() const { return ends_; }
  std::string_view at(size_t i) const;

 private:
  void grow();
  std::string bytes_;             // all texts, one behind the other
  std::vector<uint64_t> ends_;    // where each one ends
  std::vector<uint32_t> slots_;   // hash table: number of a text + 1, or 0
};

// Words that a user declares missing. A word that is a number stands for all spellings of that number: -999 and -999.0.
class MissingWords {
 public:
  explicit MissingWords(const std::vector<std::string>& words);
  // The word that the number, or the stripped cell, is; null where it is none.
  const std::string* find(double number) const;
  const std::string* find(std::string_view cell, Commas commas) const;

 private:
  std::vector<std::string> words_;  // stripped
  std::vector<double> numbers_;     // of each word; NaN: it is no number
  bool has_numbers_ = false;
};

// A column that takes cell after cell. What it has taken since the last `clear` lies in `values` or `codes`.
class CellColumn {
 public:
  enum Mode : uint8_t { skip, numbers, grouped_numbers, texts, exact_texts };  // exact: with blanks at their ends

  void begin(Mode mode, Commas commas, std::shared_ptr<const MissingWords> declared = nullptr);
  bool takes_numbers() const { return mode == numbers || mode == grouped_numbers; }
  bool takes_texts() const { return mode == texts || mode == exact_texts; }
  void add(std::string_view cell);
  void add(const Cell& cell);       // to a column of numbers
  void clear(size_t taken);  // taken: how many were there; as many may come

  Mode mode = skip;
  Commas commas = Commas::point;
  std::vector<double> values;  // NaN: missing
  std::vector<int32_t> codes;
  Texts seen;
  int decimals = 0;  // of the values since the last clear: the most that one has; -1: some cannot say
  // of all cells so far
  int64_t rows = 0, first_text = -1, first_code = -1, in_brackets = 0;
  bool one_group = false, groups = false;
  int64_t of_unit[units] = {}, first_of_unit[units] = {};
  Texts marks;  // cells that are missing, but not empty; in a column of texts those of declared words
  std::vector<int64_t> of_mark;

 private:
  void add_mark(std::string_view text);
  std::shared_ptr<const MissingWords> declared_;  // null: none
};

}  // namespace gradloom
