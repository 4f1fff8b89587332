#include "apps/sgactor/replica_copy.h"

#include "apps/sgactor/cluster_standing.h"
#include "apps/sgactor/json_field.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <bit>

namespace sgactor::apps {
namespace {

using Json = nlohmann::json;

bool read_bits(const Json& json, const char* key, float& out) {
  uint32_t bits = 0;
  if (!read_field(json, key, bits)) return false;
  out = std::bit_cast<float>(bits);
  return true;
}

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

Json to_json(const actors::StepDone& done) {
  return {{"step", done.step},
          {"grad_norm", bits_of(done.numbers.grad_norm)},
          {"lr", bits_of(done.numbers.lr)},
          {"tokens", done.tokens},
          {"samples", done.sample_hash}};
}

bool read_done(const Json& json, actors::StepDone& out) {
  return json.is_object() && read_field(json, "step", out.step) &&
         read_bits(json, "grad_norm", out.numbers.grad_norm) &&
         read_bits(json, "lr", out.numbers.lr) && read_field(json, "tokens", out.tokens) &&
         read_field(json, "samples", out.sample_hash);
}

}  // namespace

actors::wire::Opaque to_wire(const ReplicaOrder& order) {
  const Json json = {{"copy", order.copy},
                     {"step", order.step},
                     {"rank", order.rank},
                     {"root", to_hex(order.root)}};
  return {kCopyState, json.dump()};
}

Result<ReplicaOrder> parse_replica_order(std::string_view payload) {
  const Json json = Json::parse(payload, nullptr, /*allow_exceptions=*/false);
  ReplicaOrder out;
  std::string root;
  if (!json.is_object() || !read_field(json, "copy", out.copy) ||
      !read_field(json, "step", out.step) || !read_field(json, "rank", out.rank) ||
      !read_field(json, "root", root)) {
    return corruption("not an order to copy a state");
  }
  out.root = from_hex(root);
  return out;
}

actors::wire::Opaque to_wire(const ReplicaAnswer& answer) {
  Json json = {{"copy", answer.copy},
               {"rank", answer.rank},
               {"failure", to_hex(answer.failure)},
               {"part", to_hex(answer.part)}};
  if (answer.done) json["done"] = to_json(*answer.done);
  return {kStateCopied, json.dump()};
}

Result<ReplicaAnswer> parse_replica_answer(std::string_view payload) {
  const Json json = Json::parse(payload, nullptr, /*allow_exceptions=*/false);
  ReplicaAnswer out;
  std::string failure;
  std::string part;
  if (!json.is_object() || !read_field(json, "copy", out.copy) ||
      !read_field(json, "rank", out.rank) || !read_field(json, "failure", failure) ||
      !read_field(json, "part", part)) {
    return corruption("not an answer about a copy of a state");
  }
  out.failure = from_hex(failure);
  out.part = from_hex(part);
  if (json.contains("done") && !read_done(json["done"], out.done.emplace())) {
    return corruption("not what a step has given");
  }
  return out;
}

void ReplicaCopy::begin(int64_t number, int64_t step, std::string root,
                        const std::map<int32_t, int32_t>& writers) {
  number_ = number;
  step_ = step;
  root_ = std::move(root);
  status_ = {};
  parts_.clear();
  failed_.clear();
  done_.reset();
  path.clear();
  for (const auto& [rank, worker] : writers) pending_[{number, rank}] = worker;
}

void ReplicaCopy::on_answer(const ReplicaAnswer& answer) {
  if (pending_.erase({answer.copy, answer.rank}) == 0) return;
  if (answer.copy != number_) return;  // of one that was given up
  if (!answer.failure.empty()) {
    failed_.insert(answer.rank);
    status_ = make_status(Code::kInternal, fmt::format("rank {}: {}", answer.rank, answer.failure),
                          Scope::kRank);
    return;
  }
  parts_[answer.rank] = answer.part;
  if (answer.done && answer.done->step == step_) done_ = answer.done;
}

void ReplicaCopy::forget(int32_t worker) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (it->second != worker) {
      ++it;
      continue;
    }
    if (it->first.first == number_) {
      status_ = make_status(Code::kDisconnected,
                            fmt::format("rank {} was lost as it was copied", it->first.second),
                            Scope::kRank);
    }
    it = pending_.erase(it);
  }
}

std::vector<std::string> ReplicaCopy::parts() const {
  std::vector<std::string> out;
  for (const auto& [rank, part] : parts_) out.push_back(part);
  return out;
}

void ReplicaCopy::clear() {
  step_ = -1;
  root_.clear();
  path.clear();
  parts_.clear();
  status_ = {};
  failed_.clear();
  done_.reset();
}

}  // namespace sgactor::apps
