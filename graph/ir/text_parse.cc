#include "graph/ir/op_table.h"
#include "graph/ir/text.h"
#include "graph/ir/text_lexer.h"
#include "graph/ir/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <unordered_map>

namespace sgactor::graph {
namespace {

using Kind = Token::Kind;

// Each is inserted in a sorted vector: a bound keeps hostile text from taking quadratic time.
constexpr size_t kMaxAttrs = 64;

/// Recursive descent without recursion: the language does not nest.
class Parser {
 public:
  explicit Parser(std::string_view text) : lexer_(text) {}

  Result<Graph> run() {
    SGA_TRY(advance());
    SGA_TRY(expect_word("graph"));
    SGA_TRY(expect('@'));
    SGA_TRY(parse_name(graph_.name));
    SGA_TRY(expect('{'));
    while (!is('}')) SGA_TRY(parse_statement());
    SGA_TRY(advance());
    if (token_.kind != Kind::kEnd) return error("expected the end after the graph");
    if (Status s = verify(graph_); !s.ok()) return invalid_argument(s.message());
    return std::move(graph_);
  }

 private:
  Status advance() { return lexer_.next(token_); }
  [[nodiscard]] Status error(std::string_view message) const {
    return lexer_.error_at(token_.offset, message);
  }
  [[nodiscard]] bool is(char punct) const {
    return token_.kind == Kind::kPunct && token_.text[0] == punct;
  }
  [[nodiscard]] bool is_word(std::string_view word) const {
    return token_.kind == Kind::kIdentifier && token_.text == word;
  }
  Status expect(char punct) {
    if (!is(punct)) return error(fmt::format("expected '{}'", punct));
    return advance();
  }
  Status expect_word(std::string_view word) {
    if (!is_word(word)) return error(fmt::format("expected '{}'", word));
    return advance();
  }

  /// An identifier or a string.
  Status parse_name(std::string& name) {
    if (token_.kind == Kind::kIdentifier) {
      name = token_.text;
    } else if (token_.kind == Kind::kString) {
      name = token_.unescaped;
    } else {
      return error("expected a name");
    }
    return advance();
  }

  Status parse_role_and_name(Role& role, std::string& name) {
    const auto found = parse_role(token_.kind == Kind::kIdentifier ? token_.text : "");
    if (!found) return error("expected a role, such as parameter or activation");
    role = *found;
    SGA_TRY(advance());
    if (token_.kind != Kind::kString) return error("expected a name in quotes");
    return parse_name(name);
  }

  Status parse_int(int64_t& value) {
    const char* end = token_.text.data() + token_.text.size();
    if (token_.kind != Kind::kNumber) return error("expected an integer");
    const auto [stop, code] = std::from_chars(token_.text.data(), end, value);
    if (code != std::errc() || stop != end) return error("expected an integer of 64 bits");
    return advance();
  }

  /// "[1, 2]"
  Status parse_list(std::vector<int64_t>& list) {
    SGA_TRY(expect('['));
    while (!is(']')) {
      if (!list.empty()) SGA_TRY(expect(','));
      SGA_TRY(parse_int(list.emplace_back()));
    }
    return advance();
  }

  Status parse_type(TensorType& type) {
    const size_t start = token_.offset;
    const auto dtype = parse_dtype(token_.kind == Kind::kIdentifier ? token_.text : "");
    if (!dtype) return error("expected a dtype, such as f32 or bf16");
    SGA_TRY(advance());
    std::vector<int64_t> dims;
    SGA_TRY(parse_list(dims));
    type = {*dtype, Shape(std::move(dims))};
    if (Status s = check_type(type); !s.ok()) return lexer_.error_at(start, s.message());
    return {};
  }

  Status parse_number(Attr& attr) {
    const std::string_view text = token_.text;
    if (text == "-inf") {
      attr = -std::numeric_limits<double>::infinity();
      return advance();
    }
    if (text.find_first_of(".eE") == std::string_view::npos) {
      SGA_TRY(parse_int(attr.emplace<int64_t>()));
      return {};
    }
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, value);
    if (code != std::errc() || stop != end) return error("expected a number that a double holds");
    attr = value;
    return advance();
  }

  Status parse_attr_word(Attr& attr) {
    if (is_word("true") || is_word("false")) {
      attr = is_word("true");
    } else if (is_word("inf")) {
      attr = std::numeric_limits<double>::infinity();
    } else if (is_word("nan")) {
      attr = std::numeric_limits<double>::quiet_NaN();
    } else if (const auto dtype = parse_dtype(token_.text)) {
      attr = *dtype;
    } else {
      return error("expected a value of an attribute");
    }
    return advance();
  }

  Status parse_attr(Attr& attr) {
    if (is('[')) return parse_list(attr.emplace<std::vector<int64_t>>());
    if (token_.kind == Kind::kNumber) return parse_number(attr);
    if (token_.kind == Kind::kIdentifier) return parse_attr_word(attr);
    if (token_.kind != Kind::kString) return error("expected a value of an attribute");
    attr = token_.unescaped;
    return advance();
  }

  /// "{eps = 1e-05, axis = 1}"
  Status parse_attrs(Attrs& attrs) {
    SGA_TRY(expect('{'));
    while (!is('}')) {
      if (!attrs.entries().empty()) SGA_TRY(expect(','));
      if (token_.kind != Kind::kIdentifier) return error("expected the name of an attribute");
      const std::string_view attr_name = token_.text;
      if (attrs.entries().size() >= kMaxAttrs) return error("too many attributes");
      if (attrs.find(attr_name) != nullptr) return error("this attribute is given twice");
      SGA_TRY(advance());
      SGA_TRY(expect('='));
      Attr attr;
      SGA_TRY(parse_attr(attr));
      attrs.set(attr_name, std::move(attr));
    }
    return advance();
  }

  Status define(std::string_view value_name, size_t offset, ValueId v) {
    if (values_.emplace(value_name, v).second) return {};
    return lexer_.error_at(offset, fmt::format("%{} is defined twice", value_name));
  }
  Status parse_use(ValueId& v) {
    if (token_.kind != Kind::kValue) return error("expected a value, such as %3");
    const auto found = values_.find(token_.text);
    if (found == values_.end()) {
      return error(fmt::format("%{} is not defined before this", token_.text));
    }
    v = found->second;
    return advance();
  }

  Status parse_statement() {
    if (token_.kind == Kind::kValue) return parse_op();
    if (is_word("input")) return parse_input();
    if (is_word("output")) return parse_output();
    if (is_word("segments")) return parse_segments();
    return error("expected an input, an output, an op or '}'");
  }

  Status parse_input() {
    SGA_TRY(advance());
    if (token_.kind != Kind::kValue) return error("expected a value, such as %3");
    const Token defined = token_;
    TensorType type;
    Role role{};
    std::string input_name;
    SGA_TRY(advance());
    SGA_TRY(expect(':'));
    SGA_TRY(parse_type(type));
    SGA_TRY(parse_role_and_name(role, input_name));
    return define(defined.text, defined.offset,
                  graph_.add_input(std::move(type), role, std::move(input_name)));
  }

  Status parse_output() {
    SGA_TRY(advance());
    ValueId v = kNoValue;
    Role role{};
    std::string output_name;
    SGA_TRY(parse_use(v));
    SGA_TRY(parse_role_and_name(role, output_name));
    graph_.add_output(v, role, std::move(output_name));
    return {};
  }

  int32_t add_segment(const std::string& segment) {
    const auto next = static_cast<int32_t>(segments_.size());
    const auto [found, added] = segments_.emplace(segment, next);
    if (added) graph_.segment_index(segment);
    return found->second;
  }

  Status parse_segments() {
    bool more = true;
    while (more) {
      SGA_TRY(advance());
      std::string segment;
      SGA_TRY(parse_name(segment));
      if (add_segment(segment) + 1 != static_cast<int32_t>(segments_.size())) {
        return error(fmt::format("segment \"{}\" is listed twice", segment));
      }
      more = is(',');
    }
    return {};
  }

  /// "@forward embed"; absent: forward, in a graph without segments.
  Status parse_place(Phase& phase, int32_t& segment) {
    if (is('@')) {
      SGA_TRY(advance());
      const auto found = parse_phase(token_.kind == Kind::kIdentifier ? token_.text : "");
      if (!found) return error("expected a phase: forward, backward, reduce or update");
      phase = *found;
      SGA_TRY(advance());
      const bool statement = is_word("input") || is_word("output") || is_word("segments");
      if (token_.kind == Kind::kString || (token_.kind == Kind::kIdentifier && !statement)) {
        std::string segment_name;
        SGA_TRY(parse_name(segment_name));
        segment = add_segment(segment_name);
        if (op_without_segment_) return error("earlier ops name no segment");
        return {};
      }
    }
    op_without_segment_ = true;
    if (!segments_.empty()) return error("expected the segment of the op");
    return {};
  }

  Status parse_op() {
    const size_t start = token_.offset;
    std::vector<Token> defined;
    while (token_.kind == Kind::kValue) {
      defined.push_back(token_);
      SGA_TRY(advance());
      if (!is(',')) break;
      SGA_TRY(advance());
    }
    SGA_TRY(expect('='));
    const auto kind = parse_op_kind(token_.kind == Kind::kIdentifier ? token_.text : "");
    if (!kind) return error("expected the name of an op");
    SGA_TRY(advance());
    std::vector<ValueId> operands;
    SGA_TRY(expect('('));
    while (!is(')')) {
      if (!operands.empty()) SGA_TRY(expect(','));
      SGA_TRY(parse_use(operands.emplace_back()));
    }
    SGA_TRY(advance());
    Attrs attrs;
    if (is('{')) SGA_TRY(parse_attrs(attrs));
    SGA_TRY(expect(':'));
    std::vector<TensorType> types(1);
    SGA_TRY(parse_type(types[0]));
    while (is(',')) {
      SGA_TRY(advance());
      SGA_TRY(parse_type(types.emplace_back()));
    }
    Phase phase = Phase::kForward;
    int32_t segment = 0;
    SGA_TRY(parse_place(phase, segment));
    if (Status s = check_types(*kind, operands, attrs, types); !s.ok()) {
      return lexer_.error_at(start, s.message());
    }
    if (defined.size() != types.size()) {
      return lexer_.error_at(start, "the op has another number of results than of types");
    }
    const OpId id =
        graph_.add_op(*kind, std::move(operands), std::move(attrs), types, phase, segment);
    for (size_t i = 0; i < defined.size(); ++i) {
      SGA_TRY(define(defined[i].text, defined[i].offset, graph_.op(id).results[i]));
    }
    return {};
  }

  // verify() checks this as well, but knows no lines.
  Status check_types(OpKind kind, const std::vector<ValueId>& operands, const Attrs& attrs,
                     const std::vector<TensorType>& types) const {
    std::vector<TensorType> operand_types;
    for (ValueId v : operands) operand_types.push_back(graph_.type(v));
    SGA_ASSIGN(const std::vector<TensorType> inferred, infer_types(kind, operand_types, attrs));
    if (inferred == types) return {};
    std::string expected;
    for (const TensorType& type : inferred) {
      expected += (expected.empty() ? "" : ", ") + type.to_string();
    }
    return invalid_plan("expected the result types " + expected);
  }

  Lexer lexer_;
  Token token_;
  Graph graph_;
  std::unordered_map<std::string_view, ValueId> values_;
  std::unordered_map<std::string, int32_t> segments_;
  bool op_without_segment_ = false;
};

}  // namespace

Result<Graph> parse_graph(std::string_view text) { return Parser(text).run(); }

}  // namespace sgactor::graph
