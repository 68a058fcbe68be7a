#include "csv.h"

namespace gradloom {

void Splitter::feed(std::string_view piece, bool last) {
  buffer_.append(piece);
  last_ = last_ || last;
  read_rows();
}

void Splitter::begin(const std::vector<CellColumn::Mode>& modes) {
  begun_ = true;
  for (CellColumn::Mode mode : modes) {
    columns.push_back(std::make_unique<CellColumn>());
    columns.back()->begin(mode, separator_ == ',' ? Commas::point : Commas::comma, declared_);
  }
  plain_.resize(columns.size());
  read_rows();
}

void Splitter::read_rows() {
  while (fault.kind == Fault::none && position_ < buffer_.size() && (begun_ || !has_first)) {
    if (cut() != Row::whole) break;
    const bool blank = spans_.size() == 1 && stripped(cell(spans_[0])).empty();
    if (!blank && !has_first) {
      for (const Span& span : spans_) first.emplace_back(stripped(cell(span)));
      has_first = true;
      first_line = line_;
    } else if (!blank) {
      if (spans_.size() != columns.size()) {
        fault.cells = static_cast<int64_t>(spans_.size());
        fault.ends_empty = stripped(cell(spans_.back())).empty();
        fail(Fault::width, line_);
        break;
      }
      for (size_t i = 0; i < spans_.size(); i++) {
        CellColumn& column = *columns[i];
        if (column.mode == CellColumn::skip) column.rows++;
        else if (spans_[i].is_plain) column.add(plain_[i]);
        else if (column.mode == CellColumn::exact_texts) column.add(exact_cell(spans_[i]));
        else column.add(cell(spans_[i]));
      }
      lines.push_back(line_);
    }
  }
  buffer_.erase(0, position_);
  position_ = 0;
}

Splitter::Row Splitter::fail(Fault::Kind kind, int64_t last) {
  fault.kind = kind;
  fault.first = row_line_ + 1;
  fault.last = last;
  return Row::faulty;
}

// Takes the end of a line at p. known: it is whole, which a \r at the end of the bytes so far is not.
bool Splitter::end_line(size_t& p, bool& known) {
  known = true;
  if (buffer_[p] == '\r') {
    if (p + 1 == buffer_.size() && !last_) known = false;
    p += p + 1 < buffer_.size() && buffer_[p + 1] == '\n' ? 2 : 1;
    return true;
  }
  if (buffer_[p] != '\n') return false;
  p++;
  return true;
}

bool Splitter::is_too_long(size_t begin, size_t end) const {
  if (end - begin <= kLongestCell) return false;
  size_t count = 0;
  for (size_t i = begin; i < end; i++) count += (static_cast<unsigned char>(buffer_[i]) & 0xC0) != 0x80;
  return count > kLongestCell;
}

Splitter::Row Splitter::cut() {
  spans_.clear();
  row_line_ = line_;
  const char *const text = buffer_.data(), separator = separator_;
  const size_t size = buffer_.size();
  int64_t line = line_;
  bool known;
  for (size_t p = position_;;) {
    while (p < size && text[p] == ' ') p++;
    Span span{p, p, false, false};
    const size_t column = spans_.size();
    if (column < columns.size() && columns[column]->takes_numbers()) {  // most cells are numbers: read where they are cut
      const char* end = text + p;
      Cell& cell = plain_[column];
      cell = {};
      span.is_plain = read_plain(end, text + size, cell) && end != text + size &&
                      (*end == separator || *end == '\n' || *end == '\r');
      if (span.is_plain) p = static_cast<size_t>(end - text);
    }
    if (span.is_plain) {
      span.end = p;
    } else if (p < size && text[p] == '"') {
      span.begin = ++p;
      for (;; p++) {
        if (p == size) {
          if (is_too_long(span.begin, p)) return fail(Fault::long_cell, line + 1);
          return last_ ? fail(Fault::open_quote, line + 1) : Row::incomplete;
        }
        if (text[p] == '"') {
          if (p + 1 == size && !last_) return Row::incomplete;
          if (p + 1 == size || text[p + 1] != '"') break;
          span.has_pairs = true;
          p++;
        } else if (text[p] == '\n' || (text[p] == '\r' && !(p + 1 < size && text[p + 1] == '\n'))) {
          line++;
          if (is_too_long(span.begin, p)) return fail(Fault::long_cell, line);
        }
      }
      span.end = p++;
      if (p < size && text[p] != separator && text[p] != '\n' && text[p] != '\r')
        return fail(Fault::after_quote, line + 1);
    } else {
      while (p < size && text[p] != separator && text[p] != '\n' && text[p] != '\r') p++;
      span.end = p;
    }
    if (p == size && !last_) return Row::incomplete;
    if (is_too_long(span.begin, span.end)) return fail(Fault::long_cell, line + 1);
    spans_.push_back(span);
    if (p < size && text[p] == separator) {
      p++;
      continue;
    }
    if (p < size) {
      end_line(p, known);
      if (!known) return Row::incomplete;
    }
    position_ = p;
    line_ = line + 1;
    return Row::whole;
  }
}

std::string_view Splitter::exact_cell(const Span& span) {
  if (span.has_pairs) return cell(span);
  size_t begin = span.begin;  // behind a quote, a separator or a line
  while (begin > 0 && buffer_[begin - 1] == ' ') begin--;
  return {buffer_.data() + begin, span.end - begin};
}

std::string_view Splitter::cell(const Span& span) {
  const std::string_view raw(buffer_.data() + span.begin, span.end - span.begin);
  if (!span.has_pairs) return raw;
  joined_.clear();
  for (size_t i = 0; i < raw.size(); i++) {
    joined_ += raw[i];
    if (raw[i] == '"') i++;
  }
  return joined_;
}

}  // namespace gradloom
