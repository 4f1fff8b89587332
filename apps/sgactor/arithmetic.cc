#include "apps/sgactor/arithmetic.h"

#include "apps/sgactor/clock.h"
#include "apps/sgactor/json_lines.h"
#include "transport/storage/run_files.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <vector>

namespace sgactor::apps {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kWhat = "arithmetic";
constexpr std::string_view kSeveral = " or ";

std::vector<std::string> split(const std::string& fingerprint) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= fingerprint.size();) {
    const size_t end = std::min(fingerprint.find('/', at), fingerprint.size());
    parts.push_back(fingerprint.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

/// "cuda" of "cuda-1/…".
std::string kind_of(const std::string& fingerprint) {
  return fingerprint.substr(0, fingerprint.find_first_of("-/"));
}

/// What a part behind the first is to people. Backends write their libraries with name and version.
const char* name_of(const std::string& kind, const std::string& part) {
  const auto is_one_of = [&part](std::initializer_list<std::string_view> heads) {
    return std::any_of(heads.begin(), heads.end(),
                       [&](std::string_view head) { return part.starts_with(head); });
  };
  if (is_one_of({"tuned", "default"})) return "table of products";
  if (is_one_of({"OpenBLAS", "cublaslt-", "cudnn-", "no-cudnn"})) return "library";
  if (kind == "cpu") return "kernel family";
  if (is_one_of({"sm"})) return "kind of GPU";
  return "setting";
}

/// Where a user finds it.
const char* source_of(std::string_view name) {
  if (name != "table of products") return "";
  return " (the file that SGACTOR_CUDA_MATMULS names; without it "
         "$XDG_CACHE_HOME/sgactor/cuda-matmuls.txt or ~/.cache/sgactor/cuda-matmuls.txt)";
}

std::set<std::string> kinds_of(const RankArithmetic& ranks) {
  std::set<std::string> kinds;
  for (const auto& [rank, fingerprint] : ranks) kinds.insert(fingerprint);
  return kinds;
}

/// A line of ranks by what they compute by.
Json groups_of(const RankArithmetic& ranks) {
  std::map<std::string, std::vector<int32_t>> by_kind;
  for (const auto& [rank, fingerprint] : ranks) by_kind[fingerprint].push_back(rank);
  Json groups = Json::array();
  for (const auto& [kind, of_kind] : by_kind)
    groups.push_back({{"fingerprint", kind}, {"ranks", of_kind}});
  return groups;
}

}  // namespace

RankArithmetic same_arithmetic(int64_t num_ranks, const std::string& fingerprint) {
  RankArithmetic out;
  for (int64_t r = 0; r < num_ranks; ++r) out.emplace(static_cast<int32_t>(r), fingerprint);
  return out;
}

std::string arithmetic_difference(const std::string& is, const std::string& was) {
  if (is == was) return "";
  if (was.find(kSeveral) != std::string::npos) {
    return fmt::format("arithmetic {}, was {} by rank, and the number of ranks is another", is,
                       was);
  }
  const std::string kind = kind_of(is);
  if (kind != kind_of(was)) return fmt::format("device kind {}, was {}", kind, kind_of(was));
  const std::vector<std::string> here = split(is);
  const std::vector<std::string> there = split(was);
  std::string text;
  for (size_t i = 0; i < std::max(here.size(), there.size()); ++i) {
    const std::string a = i < here.size() ? here[i] : "";
    const std::string b = i < there.size() ? there[i] : "";
    if (a == b) continue;
    const std::string name = i == 0 ? "kernels" : name_of(kind, a.empty() ? b : a);
    text += fmt::format("{}{} {}, was {}{}", text.empty() ? "" : "; ", name, a.empty() ? "none" : a,
                        b.empty() ? "none" : b, source_of(name));
  }
  return text;
}

std::string arithmetic_difference(const RankArithmetic& is, const RankArithmetic& was) {
  std::vector<int32_t> others;
  for (const auto& [rank, fingerprint] : is) {
    const auto before = was.find(rank);
    if (before != was.end() && before->second != fingerprint) others.push_back(rank);
  }
  if (others.empty()) return "";
  const std::string text = arithmetic_difference(is.at(others[0]), was.at(others[0]));
  if (kinds_of(is).size() == 1 && kinds_of(was).size() == 1) return text;
  const std::string more =
      others.size() == 1 ? "" : fmt::format(" and {} more ranks", others.size() - 1);
  return fmt::format("rank {}{}: {}", others[0], more, text);
}

Status record_arithmetic(const RunDirectory& run, int64_t first_step, const RankArithmetic& is,
                         const std::string& inexact) {
  Json rest = {{"step", first_step}, {"arithmetic", groups_of(is)}};
  if (!inexact.empty()) rest["inexact"] = inexact;
  const std::string fields = rest.dump(-1, ' ', false, Json::error_handler_t::replace);
  return transport::append_line(
      run.audit(), fmt::format(R"({{"time":{:.3f},"who":"main","what":"{}",{})", unix_seconds(),
                               kWhat, fields.substr(1)));
}

bool add_arithmetic(const Json& line, ArithmeticRecord& record) {
  if (field_or<std::string>(line, "what", "") != kWhat) return false;
  RankArithmetic ranks;
  for (const Json& group : line.value("arithmetic", Json::array())) {
    const auto fingerprint = field_or<std::string>(group, "fingerprint", "");
    for (const int32_t rank : field_or(group, "ranks", std::vector<int32_t>())) {
      ranks[rank] = fingerprint;
    }
  }
  const auto step = field_or<int64_t>(line, "step", 1);
  // Whoever goes on behind a checkpoint executes again what was done after it.
  record.erase(record.lower_bound(step), record.end());
  record[step] = std::move(ranks);
  return true;
}

RankArithmetic read_arithmetic(const RunDirectory& run, int64_t step, int64_t num_ranks) {
  ArithmeticRecord record;
  // Of a long run nearly all lines are others', and are not worth parsing.
  for (const Json& line : read_json_lines(run.audit(), 0, kWhat)) add_arithmetic(line, record);
  const auto behind = record.upper_bound(step);
  if (behind == record.begin()) return {};
  const RankArithmetic& recorded = std::prev(behind)->second;
  if (static_cast<int64_t>(recorded.size()) == num_ranks) return recorded;
  std::string all;
  for (const std::string& kind : kinds_of(recorded)) {
    if (!all.empty()) all += kSeveral;
    all += kind;
  }
  return all.empty() ? RankArithmetic() : same_arithmetic(num_ranks, all);
}

Status other_arithmetic(const RunDirectory& run, const std::string& who,
                        const std::string& difference) {
  return make_status(
      Code::kUnsupported,
      fmt::format("--resume {}: {} computes otherwise than the run did: {}; bits would differ from "
                  "here on: --resilience.allow_inexact=true goes on all the same",
                  run.path, who, difference),
      Scope::kDevice);
}

}  // namespace sgactor::apps
