// csv.h: cuts the text of a CSV file into rows and cells, as Python's csv module does it with skipinitialspace and strict.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cells.h"

namespace gradloom {

constexpr size_t kLongestCell = 131072;  // characters, as in Python's csv module

// Why the rest of a file cannot be read.
struct Fault {
  enum Kind : int { none, width, open_quote, after_quote, long_cell } kind = none;
  int64_t first = 0, last = 0;  // the line in which the row begins; the line in which that was seen
  int64_t cells = 0;            // width: how many cells the row has
  bool ends_empty = false;      // width: the last of them is empty
};

// Takes the bytes of a file piece by piece. The first row that is not blank waits for `begin`, which says how the columns
// of the others are read.
class Splitter {
 public:
  explicit Splitter(char separator, std::shared_ptr<const MissingWords> declared = nullptr)
      : separator_(separator), declared_(std::move(declared)) {}
  Splitter(const Splitter&) = delete;
  Splitter& operator=(const Splitter&) = delete;

  void feed(std::string_view piece, bool last);  // last: the file ends here
  void begin(const std::vector<CellColumn::Mode>& modes);

  bool has_first = false;
  std::vector<std::string> first;  // the cells of the first row, stripped
  int64_t first_line = 0;
  Fault fault;
  std::vector<int64_t> lines;  // of the rows since the last clear: the line on which each one ends
  std::vector<std::unique_ptr<CellColumn>> columns;

 private:
  struct Span {
    size_t begin, end;
    bool has_pairs;  // "" that stands for "
    bool is_plain;   // a number, in plain_ at the place of the cell
  };
  enum class Row { whole, incomplete, faulty };

  void read_rows();
  Row cut();  // the row at position_ into spans_
  Row fail(Fault::Kind kind, int64_t last);
  bool is_too_long(size_t begin, size_t end) const;
  bool end_line(size_t& p, bool& known);
  std::string_view cell(const Span& span);
  std::string_view exact_cell(const Span& span);  // with the blanks in front of it

  char separator_;
  std::shared_ptr<const MissingWords> declared_;  // words that are missing values; null: none
  bool begun_ = false, last_ = false;
  std::string buffer_;  // the bytes from the last whole row on
  size_t position_ = 0;
  int64_t line_ = 0, row_line_ = 0;  // lines before position_; lines before the row's end
  std::vector<Span> spans_;
  std::vector<Cell> plain_;
  std::string joined_;  // a cell whose "" are "
};

}  // namespace gradloom
