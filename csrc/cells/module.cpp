// module.cpp: gradloom._cells, the reading of tables as Python sees it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <limits>

#include "csv.h"

namespace nb = nanobind;
using namespace gradloom;

namespace {

template <class T> nb::object as_array(std::vector<T>&& values) {
  auto held = std::make_unique<std::vector<T>>(std::move(values));
  values = {};
  nb::capsule owner(held.get(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  std::vector<T>* const vector = held.release();
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(vector->data(), {vector->size()}, owner).cast();
}

std::string_view bytes_of(nb::handle object) {
  if (PyBytes_Check(object.ptr())) return {PyBytes_AsString(object.ptr()), size_t(PyBytes_Size(object.ptr()))};
  if (!PyUnicode_Check(object.ptr())) throw nb::type_error("cells: need a list of str or bytes");
  Py_ssize_t size;
  const char* text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (!text) throw nb::python_error();
  return {text, size_t(size)};
}

nb::tuple texts_of(const Texts& texts) {
  return nb::make_tuple(nb::bytes(texts.bytes().data(), texts.bytes().size()),
                        as_array(std::vector<uint64_t>(texts.ends())));
}

nb::object take(CellColumn& column) {
  if (column.mode == CellColumn::skip) {
    column.clear(0);
    return nb::none();
  }
  const size_t taken = std::max(column.values.size(), column.codes.size());
  nb::object made = column.takes_texts()
      ? as_array(std::move(column.codes))
      : nb::object(nb::make_tuple(as_array(std::move(column.values)), column.decimals));
  column.clear(taken);
  return made;
}

std::vector<CellColumn::Mode> modes_of(const nb::bytes& said) {
  std::vector<CellColumn::Mode> modes;
  for (size_t i = 0; i < said.size(); i++) {
    const unsigned char mode = static_cast<unsigned char>(said.c_str()[i]);
    if (mode > CellColumn::exact_texts) throw std::invalid_argument("modes: need numbers of 0 to 4");
    modes.push_back(static_cast<CellColumn::Mode>(mode));
  }
  return modes;
}

std::shared_ptr<const MissingWords> declared_of(const nb::list& words) {
  if (nb::len(words) == 0) return nullptr;
  std::vector<std::string> made;
  for (nb::handle word : words) made.emplace_back(bytes_of(word));
  return std::make_shared<const MissingWords>(made);
}

}  // namespace

NB_MODULE(_cells, m) {
  m.doc() = "CSV files as columns of numbers and texts.";
  nb::set_leak_warnings(false);
  m.attr("SKIP") = int(CellColumn::skip);
  m.attr("NUMBERS") = int(CellColumn::numbers);
  m.attr("GROUPED_NUMBERS") = int(CellColumn::grouped_numbers);
  m.attr("TEXTS") = int(CellColumn::texts);
  m.attr("EXACT_TEXTS") = int(CellColumn::exact_texts);
  m.attr("CODES") = nb::make_tuple("", "some begin with 0", "some have more digits than float64 keeps");
  m.attr("UNITS") = nb::make_tuple("", "%", "$", "\xE2\x82\xAC", "\xC2\xA3", "\xC2\xA5");
  m.attr("FAULTS") = nb::make_tuple("", "width", "open quote", "after quote", "long cell");
  m.attr("LONGEST_CELL") = kLongestCell;

  m.def("read_cell", [](nb::handle cell, bool comma) -> nb::object {
    const Cell read = read_cell(stripped(bytes_of(cell)), comma ? Commas::comma : Commas::point);
    if (read.kind == Cell::missing) return nb::none();
    if (read.kind == Cell::text) return nb::bool_(false);
    return nb::float_(read.value);
  }, nb::arg("cell"), nb::arg("comma"),
     "The number that a cell (str or bytes) is; None for a missing value, False for a text. comma: 1,5 is 1.5.");

  nb::class_<CellColumn>(m, "Column", "Cells that are read as numbers or as texts.")
      .def("__init__", [](CellColumn* self, int mode, bool comma, const nb::list& missing) {
        if (mode < 0 || mode > CellColumn::exact_texts) throw std::invalid_argument("mode: need a number of 0 to 4");
        new (self) CellColumn();
        self->begin(static_cast<CellColumn::Mode>(mode), comma ? Commas::comma : Commas::point, declared_of(missing));
      }, nb::arg("mode"), nb::arg("comma") = false, nb::arg("missing") = nb::list(),
         "missing: words (str or bytes) that are missing values, too.")
      .def("add", [](CellColumn& column, const nb::list& cells) {
        for (nb::handle cell : cells) column.add(bytes_of(cell));
      }, nb::arg("cells"), "Takes cells, each a str or bytes.")
      .def("take", &take,
           "What was added since the last take: (f64 values, decimals) of numbers, i32 codes of texts, or None. "
           "decimals: the most that a value has; -1 where that is not known.")
      .def_ro("rows", &CellColumn::rows, "Cells so far.")
      .def_ro("first_text", &CellColumn::first_text, "The row of the first text in a column of numbers, or -1.")
      .def_ro("first_code", &CellColumn::first_code,
              "The row of the first number whose digits tell more than the number (see CODES), or -1.")
      .def_ro("in_brackets", &CellColumn::in_brackets, "Numbers such as (1234.50), which are negative.")
      .def_prop_ro("is_mixed", [](const CellColumn& c) {
        return c.mode == CellColumn::numbers && c.one_group && c.groups;
      }, "1,234 was read as 1.234, and other cells say that commas are groups of digits: read again as such.")
      .def_prop_ro("units", [](const CellColumn& c) {
        nb::list made;
        for (int i = 0; i < units; i++) made.append(nb::make_tuple(c.of_unit[i], c.first_of_unit[i]));
        return made;
      }, "For each of UNITS: (numbers that have it, the first one's row).")
      .def_prop_ro("marks", [](const CellColumn& c) {
        return nb::make_tuple(texts_of(c.marks), as_array(std::vector<int64_t>(c.of_mark)));
      }, "((bytes of all marks of missing values, where each ends), how often each one is there); of texts: of declared "
         "words.")
      .def_prop_ro("texts", [](const CellColumn& c) { return texts_of(c.seen); },
                   "(bytes of all texts, where each one ends), in the order of the codes.")
      .def("read_texts", [](const CellColumn& c) {
        std::vector<double> values;
        std::vector<uint8_t> kinds;
        for (size_t i = 0; i < c.seen.count(); i++) {
          const Cell cell = read_cell(c.seen.at(i), c.commas);
          values.push_back(cell.kind == Cell::number ? cell.value : std::numeric_limits<double>::quiet_NaN());
          kinds.push_back(uint8_t(cell.kind));
        }
        return nb::make_tuple(as_array(std::move(values)), as_array(std::move(kinds)));
      }, "(f64 values, NaN for what is no number; kinds: 0 a number, 1 missing, 2 a text) of the texts.");

  m.def("code_of", [](nb::handle cell) {
    return int(read_cell(stripped(bytes_of(cell)), Commas::point).code);
  }, nb::arg("cell"), "Which of CODES is said of a cell (str or bytes); 0 where it is an ordinary number, or none.");

  nb::class_<Splitter>(m, "Splitter", "The rows of a CSV file, which is given in pieces.")
      .def("__init__", [](Splitter* self, const std::string& separator, const nb::list& missing) {
        if (separator.size() != 1) throw std::invalid_argument("separator: need one byte");
        new (self) Splitter(separator[0], declared_of(missing));
      }, nb::arg("separator"), nb::arg("missing") = nb::list(), "missing: words that are missing values, too.")
      .def("feed", [](Splitter& s, const nb::bytes& piece, bool last) {
        const std::string_view bytes(piece.c_str(), piece.size());
        nb::gil_scoped_release released;
        s.feed(bytes, last);
      }, nb::arg("piece"), nb::arg("last"),
         "Takes the next bytes, while other threads of Python run. last: the file ends with them.")
      .def("begin", [](Splitter& s, const nb::bytes& modes) { s.begin(modes_of(modes)); }, nb::arg("modes"),
           "Goes on behind the first row, with a mode (SKIP, NUMBERS, ...) for each column.")
      .def_prop_ro("first", [](const Splitter& s) -> nb::object {
        if (!s.has_first) return nb::none();
        nb::list cells;
        for (const std::string& cell : s.first) cells.append(nb::bytes(cell.data(), cell.size()));
        return nb::make_tuple(s.first_line, cells);
      }, "(the line on which it ends, cells) of the first row that is not blank, or None.")
      .def_prop_ro("fault", [](const Splitter& s) -> nb::object {
        if (s.fault.kind == Fault::none) return nb::none();
        return nb::make_tuple(int(s.fault.kind), s.fault.first, s.fault.last, s.fault.cells,
                              s.fault.ends_empty);
      }, "None, or why the rest cannot be read: (of FAULTS, first line of the row, line where it was seen, cells, whether "
         "the last one is empty).")
      .def("take_lines", [](Splitter& s) { return as_array(std::move(s.lines)); },
           "The lines on which the rows since the last call end, i64.")
      .def_prop_ro("columns", [](nb::handle self) {
        nb::list made;
        for (auto& column : nb::cast<Splitter&>(self).columns)
          made.append(nb::cast(column.get(), nb::rv_policy::reference_internal, self));
        return made;
      }, "A Column each, once the rows have begun.");
}
