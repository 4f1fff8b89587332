#include "graph/ir/op_table.h"
#include "graph/ir/text.h"
#include "graph/ir/text_lexer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace sgactor::graph {
namespace {

std::string quote(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      fmt::format_to(std::back_inserter(quoted), "\\x{:02x}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string bare_or_quoted(std::string_view name) {
  // After a phase these words begin the next statement.
  const bool reserved = name == "input" || name == "output" || name == "segments";
  return is_identifier(name) && !reserved ? std::string(name) : quote(name);
}

/// The shortest digits that give the same double, marked as a float.
std::string print_float(double value) {
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

struct AttrPrinter {
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return print_float(value); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return quote(value); }
  std::string operator()(const std::vector<int64_t>& value) const {
    return fmt::format("[{}]", fmt::join(value, ", "));
  }
  std::string operator()(DType value) const { return std::string(dtype_name(value)); }
};

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph), numbers_(graph.values().size(), kNoValue) {}

  std::string run() {
    append("graph @{} {{\n", bare_or_quoted(graph_.name));
    print_segments();
    for (const GraphInput& input : graph_.inputs()) {
      append("  input {} : {} {} {}\n", define(input.value), type(input.value),
             to_string(input.role), quote(input.name));
    }
    for (const Op& op : graph_.ops()) print_op(op);
    for (const GraphOutput& output : graph_.outputs()) {
      append("  output {} {} {}\n", use(output.value), to_string(output.role), quote(output.name));
    }
    text_ += "}\n";
    return std::move(text_);
  }

 private:
  template <class... A>
  void append(fmt::format_string<A...> format, A&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<A>(args)...);
  }

  // Printing also serves to show graphs that break the rules, so no id is trusted.
  std::string define(ValueId v) {
    if (v < numbers_.size()) numbers_[v] = next_;
    return fmt::format("%{}", next_++);
  }
  [[nodiscard]] std::string use(ValueId v) const {
    if (v >= numbers_.size() || numbers_[v] == kNoValue) return "%undefined";
    return fmt::format("%{}", numbers_[v]);
  }
  [[nodiscard]] std::string type(ValueId v) const {
    return v < numbers_.size() ? graph_.type(v).to_string() : "?";
  }
  [[nodiscard]] bool has_segment(const Op& op) const {
    return op.segment >= 0 && static_cast<size_t>(op.segment) < graph_.segments().size();
  }

  /// Segments are listed only where the ops do not bring them up in the same order.
  void print_segments() {
    std::vector<bool> seen(graph_.segments().size());
    size_t num_seen = 0;
    bool in_order = true;
    for (const Op& op : graph_.ops()) {
      if (!has_segment(op) || seen[static_cast<size_t>(op.segment)]) continue;
      seen[static_cast<size_t>(op.segment)] = true;
      in_order = in_order && static_cast<size_t>(op.segment) == num_seen;
      ++num_seen;
    }
    if (in_order && num_seen == seen.size()) return;
    std::string names;
    for (const std::string& segment : graph_.segments()) {
      names += (names.empty() ? "" : ", ") + bare_or_quoted(segment);
    }
    append("  segments {}\n", names);
  }

  void print_op(const Op& op) {
    std::string results;
    std::string types;
    std::string operands;
    for (ValueId v : op.operands) operands += (operands.empty() ? "" : ", ") + use(v);
    for (ValueId v : op.results) {
      results += (results.empty() ? "" : ", ") + define(v);
      types += (types.empty() ? "" : ", ") + type(v);
    }
    const bool known = static_cast<int>(op.kind) < kNumOpKinds;
    append("  {} = {}({})", results, known ? op_info(op.kind).name : "?", operands);
    std::string attrs;
    for (const auto& [attr_name, value] : op.attrs.entries()) {
      attrs += attrs.empty() ? "" : ", ";
      attrs += attr_name + " = " + std::visit(AttrPrinter{}, value);
    }
    if (!attrs.empty()) append(" {{{}}}", attrs);
    append(" : {} @{}", types, to_string(op.phase));
    if (has_segment(op)) {
      append(" {}", bare_or_quoted(graph_.segments()[static_cast<size_t>(op.segment)]));
    }
    text_ += '\n';
  }

  const Graph& graph_;
  std::vector<ValueId> numbers_;
  ValueId next_ = 0;
  std::string text_;
};

}  // namespace

std::string print_graph(const Graph& graph) { return Printer(graph).run(); }

}  // namespace sgactor::graph
