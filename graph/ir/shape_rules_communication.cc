// Shape rules of ops that communicate.
#include "graph/ir/shape_rules.h"

#include <fmt/format.h>

namespace sgactor::graph::rules {
namespace {

constexpr int64_t kMaxMembers = 65536;

Status need_group(const Attrs& attrs) {
  if (!attrs.text("group").empty()) return {};
  return bad("attribute group is empty");
}

Status need_members(const Attrs& attrs) {
  const int64_t members = attrs.i64("members");
  if (members >= 1 && members <= kMaxMembers) return {};
  return bad(fmt::format("members is {}, expected 1 to {}", members, kMaxMembers));
}

/// One size an operand, none negative.
Status need_sizes(Operands operands, const std::vector<int64_t>& sizes, std::string_view name) {
  if (sizes.size() != operands.size()) {
    return bad(fmt::format("{} {} for {} operands", sizes.size(), name, operands.size()));
  }
  for (int64_t size : sizes) {
    if (size < 0) return bad(fmt::format("{} holds {}", name, size));
  }
  return {};
}

/// Do `members` pieces hold `size` elements?
bool holds(int64_t piece, int64_t members, int64_t size) {
  int64_t capacity = 0;
  return __builtin_mul_overflow(piece, members, &capacity) || capacity >= size;
}

}  // namespace

Types all_reduce_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_group(attrs));
  const std::string& reduce = attrs.text("reduce");
  if (reduce != "sum" && reduce != "max") {
    return bad("reduce is \"" + reduce + "\", expected \"sum\" or \"max\"");
  }
  for (size_t i = 0; i < operands.size(); ++i) SGA_TRY(need_float(operands, i));
  return std::vector<TensorType>(operands.begin(), operands.end());
}

Types all_gather_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_group(attrs));
  SGA_TRY(need_members(attrs));
  const std::vector<int64_t>& sizes = attrs.list("sizes");
  SGA_TRY(need_sizes(operands, sizes, "sizes"));
  std::vector<TensorType> results;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!holds(operands[i].num_elements(), attrs.i64("members"), sizes[i])) {
      return bad(fmt::format("{} pieces of {} elements do not hold {}", attrs.i64("members"),
                             operands[i].num_elements(), sizes[i]));
    }
    results.push_back({operands[i].dtype, Shape{sizes[i]}});
  }
  return results;
}

Types reduce_scatter_shape(Operands operands, const Attrs& attrs) {
  SGA_TRY(need_group(attrs));
  SGA_TRY(need_members(attrs));
  const std::vector<int64_t>& pieces = attrs.list("pieces");
  SGA_TRY(need_sizes(operands, pieces, "pieces"));
  std::vector<TensorType> results;
  for (size_t i = 0; i < operands.size(); ++i) {
    SGA_TRY(need_float(operands, i));
    if (!holds(pieces[i], attrs.i64("members"), operands[i].num_elements())) {
      return bad(fmt::format("{} pieces of {} elements do not hold {}", attrs.i64("members"),
                             pieces[i], operands[i].num_elements()));
    }
    results.push_back({operands[i].dtype, Shape{pieces[i]}});
  }
  return results;
}

}  // namespace sgactor::graph::rules
