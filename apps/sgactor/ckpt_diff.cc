// sgactor ckpt diff: what of two checkpoints' tensors is not the same.
#include "apps/sgactor/ckpt_diff.h"

#include "apps/sgactor/command_line.h"
#include "graph/base/f8.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>

namespace sgactor::apps {
namespace {

using transport::Checkpoint;
using transport::TensorRecord;
using Bytes = std::vector<std::byte>;
using Kind = TensorDifference::Kind;

template <class T>
T read_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double element(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kF64:
      return read_as<double>(at);
    case DType::kF32:
      return read_as<float>(at);
    case DType::kBF16:
      return bf16_to_float(read_as<uint16_t>(at));
    case DType::kF16:
      return f16_to_float(read_as<uint16_t>(at));
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return f8_to_float(dtype, read_as<uint8_t>(at));
    case DType::kI64:
      return static_cast<double>(read_as<int64_t>(at));
    case DType::kI32:
      return read_as<int32_t>(at);
    case DType::kU8:
      return read_as<uint8_t>(at);
  }
  return 0;
}

void compare_elements(DType dtype, const Bytes& a, const Bytes& b, TensorDifference& out) {
  const auto width = static_cast<size_t>(dtype_bytes(dtype));
  for (size_t at = 0; at < a.size(); at += width) {
    if (std::memcmp(a.data() + at, b.data() + at, width) == 0) continue;
    ++out.num_different;
    const double x = element(dtype, a.data() + at);
    const double y = element(dtype, b.data() + at);
    if (!std::isfinite(x) || !std::isfinite(y)) {
      ++out.num_not_finite;
      continue;
    }
    const double absolute = std::abs(x - y);
    out.max_absolute = std::max(out.max_absolute, absolute);
    // Zeros of two signs have other bits and no distance.
    if (absolute > 0) {
      const double larger = std::max(std::abs(x), std::abs(y));
      out.max_relative = std::max(out.max_relative, absolute / larger);
    }
  }
}

Status compare_tensor(const Checkpoint& a, const Checkpoint& b, const TensorRecord& tensor,
                      TensorDifference& out) {
  const auto size = static_cast<size_t>(tensor.type.bytes());
  Bytes of_a(size);
  Bytes of_b(size);
  SGA_TRY(a.load(tensor.name, tensor.type, of_a));
  SGA_TRY(b.load(tensor.name, tensor.type, of_b));
  out.num_elements = tensor.type.num_elements();
  if (size > 0 && std::memcmp(of_a.data(), of_b.data(), size) != 0) {
    compare_elements(tensor.type.dtype, of_a, of_b, out);
  }
  return {};
}

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kOnlyInA:
      return "only_in_a";
    case Kind::kOnlyInB:
      return "only_in_b";
    case Kind::kType:
      return "type";
    case Kind::kBits:
      return "bits";
  }
  return "";
}

nlohmann::ordered_json to_json(const TensorDifference& d) {
  nlohmann::ordered_json out = {{"name", d.name}, {"kind", kind_name(d.kind)}};
  if (!d.a_type.empty()) out["a_type"] = d.a_type;
  if (!d.b_type.empty()) out["b_type"] = d.b_type;
  if (d.kind != Kind::kBits) return out;
  out["elements"] = d.num_elements;
  out["different"] = d.num_different;
  out["not_finite"] = d.num_not_finite;
  out["max_absolute"] = d.max_absolute;
  out["max_relative"] = d.max_relative;
  return out;
}

struct DiffOptions {
  std::string a;
  std::string b;
  bool json = false;
};

nlohmann::ordered_json head_of(const transport::CheckpointInfo& info) {
  return {{"path", info.path}, {"step", info.step}, {"mesh", info.mesh}};
}

Result<int> diff(const DiffOptions& options) {
  SGA_ASSIGN(const std::string a_dir, find_step_dir(options.a));
  SGA_ASSIGN(const std::string b_dir, find_step_dir(options.b));
  SGA_ASSIGN(const auto a, Checkpoint::open(a_dir));
  SGA_ASSIGN(const auto b, Checkpoint::open(b_dir));
  SGA_ASSIGN(const CheckpointDifference found, compare_checkpoints(*a, *b));
  if (options.json) {
    nlohmann::ordered_json out = {{"a", head_of(a->info())},
                                  {"b", head_of(b->info())},
                                  {"equal", found.equal()},
                                  {"tensors", found.num_tensors}};
    out["different"] = nlohmann::ordered_json::array();
    for (const TensorDifference& d : found.tensors) out["different"].push_back(to_json(d));
    std::cout << out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    for (const auto* c : {a.get(), b.get()}) {
      const transport::CheckpointInfo& info = c->info();
      std::cout << fmt::format("{}  {}: step {}, {}\n", c == a.get() ? "a" : "b", info.path,
                               info.step, info.mesh);
    }
    for (const TensorDifference& d : found.tensors) std::cout << difference_text(d) << "\n";
    std::cout << (found.equal() ? fmt::format("equal: all bits of {} tensors\n", found.num_tensors)
                                : fmt::format("different: {} of {} tensors\n", found.tensors.size(),
                                              found.num_tensors));
  }
  return found.equal() ? kExitDone : kExitFailed;
}

}  // namespace

Result<CheckpointDifference> compare_checkpoints(const Checkpoint& a, const Checkpoint& b) {
  std::map<std::string, std::pair<const TensorRecord*, const TensorRecord*>> names;
  for (const TensorRecord& t : a.info().tensors) names[t.name].first = &t;
  for (const TensorRecord& t : b.info().tensors) names[t.name].second = &t;
  CheckpointDifference out;
  out.num_tensors = static_cast<int64_t>(names.size());
  for (const auto& [name, tensors] : names) {
    const auto& [of_a, of_b] = tensors;
    TensorDifference d;
    d.name = name;
    if (of_a != nullptr) d.a_type = of_a->type.to_string();
    if (of_b != nullptr) d.b_type = of_b->type.to_string();
    if (of_a == nullptr || of_b == nullptr) {
      d.kind = of_a == nullptr ? Kind::kOnlyInB : Kind::kOnlyInA;
    } else if (of_a->type != of_b->type) {
      d.kind = Kind::kType;
    } else {
      SGA_TRY(compare_tensor(a, b, *of_a, d));
      if (d.num_different == 0) continue;
    }
    out.tensors.push_back(std::move(d));
  }
  return out;
}

std::string difference_text(const TensorDifference& d) {
  switch (d.kind) {
    case Kind::kOnlyInA:
      return fmt::format("{}  only in a ({})", d.name, d.a_type);
    case Kind::kOnlyInB:
      return fmt::format("{}  only in b ({})", d.name, d.b_type);
    case Kind::kType:
      return fmt::format("{}  {} in a, {} in b", d.name, d.a_type, d.b_type);
    case Kind::kBits:
      break;
  }
  std::string text =
      fmt::format("{}  {} of {} elements differ, by at most {:.3g}, relative {:.3g}", d.name,
                  d.num_different, d.num_elements, d.max_absolute, d.max_relative);
  if (d.num_not_finite > 0) text += fmt::format("; {} are not finite", d.num_not_finite);
  return text;
}

Result<std::string> find_step_dir(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path + "/manifest.bin", error)) return path;
  return transport::newest_checkpoint(path, nullptr);
}

void add_ckpt_diff(CLI::App& ckpt, CommandLine& line) {
  CLI::App* sub = ckpt.add_subcommand("diff", "compare the tensors of two checkpoints");
  auto options = std::make_shared<DiffOptions>();
  sub->add_option("a", options->a, "step directory, or a run directory: its newest")->required();
  sub->add_option("b", options->b, "as a")->required();
  sub->add_flag("--json", options->json, "one JSON object");
  sub->footer("Exit code 0: all bits are equal; 1: they differ; 2: one is no whole checkpoint.");
  sub->callback([&line, options] { line.action = [options] { return diff(*options); }; });
}

}  // namespace sgactor::apps
