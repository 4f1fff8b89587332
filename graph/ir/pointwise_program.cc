#include "graph/ir/pointwise_program.h"

#include "graph/ir/op_table.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace sgactor::graph {
namespace {

bool has_param(OpKind kind) { return kind == OpKind::kScale || kind == OpKind::kAddScalar; }

/// The next word; empty at the end.
std::string_view take_word(std::string_view& text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(word.size());
  return word;
}

template <class T>
bool parse_whole(std::string_view word, T* out) {
  const char* end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data(), end, *out);
  return error == std::errc() && at == end;
}

std::optional<PointwiseInstruction> parse_instruction(std::string_view text, int32_t num_values) {
  const auto kind = parse_op_kind(take_word(text));
  if (!kind || !is_program_op(*kind)) return std::nullopt;
  PointwiseInstruction i;
  i.kind = *kind;
  const auto value = [&](int32_t* out) {
    return parse_whole(take_word(text), out) && *out >= 0 && *out < num_values;
  };
  if (!value(&i.a)) return std::nullopt;
  if (is_program_binary(i.kind) && !value(&i.b)) return std::nullopt;
  if (has_param(i.kind) && !parse_whole(take_word(text), &i.param)) return std::nullopt;
  if (!take_word(text).empty()) return std::nullopt;
  return i;
}

}  // namespace

std::string print_pointwise_program(const PointwiseProgram& program) {
  std::string text;
  for (const PointwiseInstruction& i : program) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{} {}", op_info(i.kind).name, i.a);
    if (is_program_binary(i.kind)) text += fmt::format(" {}", i.b);
    if (has_param(i.kind)) text += fmt::format(" {}", i.param);
  }
  return text;
}

Result<PointwiseProgram> parse_pointwise_program(std::string_view text, int32_t num_operands) {
  PointwiseProgram program;
  for (std::string_view rest = text;;) {
    const size_t end = rest.find(';');
    const auto number = static_cast<int32_t>(program.size());
    if (number == kMaxPointwiseInstructions) {
      return make_status(Code::kInvalidPlan, fmt::format("program has more than {} instructions",
                                                         kMaxPointwiseInstructions));
    }
    const auto instruction = parse_instruction(rest.substr(0, end), num_operands + number);
    if (!instruction) {
      return make_status(Code::kInvalidPlan,
                         fmt::format("instruction {} of the program is malformed", number));
    }
    program.push_back(*instruction);
    if (end == std::string_view::npos) return program;
    rest.remove_prefix(end + 1);
  }
}

}  // namespace sgactor::graph
