#include "apps/sgactor/hang_views.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <exception>

namespace sgactor::apps {
namespace {

using Json = nlohmann::ordered_json;
using actors::RunShared;
using supervision::LastMessage;
using supervision::PendingOperation;
using supervision::RankView;

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

std::string_view to_string(RunShared::Phase phase) {
  constexpr std::array<std::string_view, 5> kNames = {"idle", "computing", "voted", "updating",
                                                      "validating"};
  return kNames[static_cast<size_t>(phase)];
}

void add_operations(const actors::ProgramContext& context, RankView& view) {
  std::vector<actors::ChannelOperation> operations;
  for (const actors::LaneSet::Lane& lane : context.lanes->lanes) {
    if (lane.channel) lane.channel->list(operations);
  }
  for (const actors::ChannelOperation& o : operations) {
    const auto key = static_cast<uint64_t>(o.key);
    if (o.done) {
      view.done.push_back({key, o.step, o.micro_batch});
      continue;
    }
    view.pending.push_back({o.lane, o.channel, std::string(o.kind), o.sequence, o.launch, key,
                            o.step, o.micro_batch,
                            std::max<int64_t>(0, (now_ns() - o.start_ns) / 1'000'000), o.members});
  }
}

void add_actors(RunShared& shared, RankView& view) {
  const std::lock_guard lock(shared.mutex);
  for (const RunShared::RankRecord& rank : shared.ranks) {
    if (rank.rank != view.rank) continue;
    const RunShared::Phase phase = rank.phase;
    view.phase = to_string(phase);
    view.at_work = phase != RunShared::Phase::kIdle && phase != RunShared::Phase::kVoted;
  }
  for (const RunShared::ActorRecord& a : shared.records) {
    const char* message = a.message;
    if (message == nullptr || (a.rank >= 0 && a.rank != view.rank)) continue;
    view.actors.push_back({a.actor, message, a.step,
                           std::max<int64_t>(0, (now_ns() - a.time_ns) / 1'000'000),
                           a.micro_batch});
  }
  // Who has been silent longest comes last: the top says where the rank has come to.
  std::stable_sort(view.actors.begin(), view.actors.end(),
                   [](const LastMessage& a, const LastMessage& b) { return a.ago_ms < b.ago_ms; });
}

Json json_of(const PendingOperation& p) {
  Json out;
  out["channel"] = p.channel;
  out["lane"] = p.lane;
  out["kind"] = p.kind;
  out["sequence"] = p.sequence;
  out["launch"] = p.launch;
  out["key"] = p.key;
  out["step"] = p.step;
  out["micro_batch"] = p.micro_batch;
  out["waited_ms"] = p.waited_ms;
  out["members"] = p.members;
  return out;
}

Json json_of(const LastMessage& m) {
  return {{"actor", m.actor},
          {"message", m.message},
          {"step", m.step},
          {"micro_batch", m.micro_batch},
          {"ago_ms", m.ago_ms}};
}

Json json_of(const RankView& v) {
  Json out;
  out["rank"] = v.rank;
  out["at_work"] = v.at_work;
  out["phase"] = v.phase;
  out["pending"] = Json::array();
  for (const PendingOperation& p : v.pending) out["pending"].push_back(json_of(p));
  out["done"] = Json::array();
  for (const auto& d : v.done) out["done"].push_back({d.key, d.step, d.micro_batch});
  out["actors"] = Json::array();
  for (const LastMessage& m : v.actors) out["actors"].push_back(json_of(m));
  return out;
}

RankView view_from(const Json& from) {
  RankView out;
  from.at("rank").get_to(out.rank);
  from.at("at_work").get_to(out.at_work);
  from.at("phase").get_to(out.phase);
  for (const Json& p : from.at("pending")) {
    PendingOperation& to = out.pending.emplace_back();
    p.at("channel").get_to(to.channel);
    p.at("lane").get_to(to.lane);
    p.at("kind").get_to(to.kind);
    p.at("sequence").get_to(to.sequence);
    p.at("launch").get_to(to.launch);
    p.at("key").get_to(to.key);
    p.at("step").get_to(to.step);
    p.at("micro_batch").get_to(to.micro_batch);
    p.at("waited_ms").get_to(to.waited_ms);
    p.at("members").get_to(to.members);
  }
  for (const Json& d : from.at("done")) {
    out.done.push_back({d.at(0).get<uint64_t>(), d.at(1).get<int64_t>(), d.at(2).get<int32_t>()});
  }
  for (const Json& m : from.at("actors")) {
    LastMessage& to = out.actors.emplace_back();
    m.at("actor").get_to(to.actor);
    m.at("message").get_to(to.message);
    m.at("step").get_to(to.step);
    m.at("micro_batch").get_to(to.micro_batch);
    m.at("ago_ms").get_to(to.ago_ms);
  }
  return out;
}

Json json_of(const supervision::StuckOperation& s) {
  Json out = json_of(s.operation);
  out["joined"] = s.waiting;
  out["done"] = s.done;
  out["missing"] = s.missing;
  return out;
}

}  // namespace

std::vector<RankView> rank_views(const actors::WorkerAssembly& assembly) {
  std::vector<RankView> out;
  for (const actors::RankSetup& setup : assembly.ranks()) {
    RankView& view = out.emplace_back();
    view.rank = setup.rank;
    add_operations(*setup.training.context, view);
    add_actors(assembly.shared(), view);
  }
  return out;
}

std::string encode_views(const std::vector<RankView>& views) {
  Json out = Json::array();
  for (const RankView& view : views) out.push_back(json_of(view));
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::vector<RankView>> decode_views(std::string_view text) {
  std::vector<RankView> out;
  try {
    for (const Json& view : Json::parse(text)) out.push_back(view_from(view));
  } catch (const std::exception& e) {
    return corruption(fmt::format("views of ranks: {}", e.what()));
  }
  return out;
}

Json hang_json(const HangFile& file, const supervision::HangReport& report,
               const std::vector<RankView>& views) {
  Json out;
  out["fault"] = file.fault;
  out["culprit"] = file.culprit;
  out["culprit_ranks"] = report.culprits;
  out["generation"] = file.generation;
  out["step"] = file.step;
  out["detected_unix"] = file.detected_unix;
  out["still_ms"] = std::round(file.still_ms);
  out["reported_ms"] = std::round(file.reported_ms);
  out["stuck"] = Json::array();
  for (const auto& s : report.stuck) out["stuck"].push_back(json_of(s));
  out["under_way"] = Json::array();
  for (const auto& s : report.under_way) out["under_way"].push_back(json_of(s));
  out["ranks"] = Json::array();
  for (const RankView& view : views) {
    Json rank = json_of(view);
    rank.erase("done");
    rank["heard"] = view.heard;
    for (const HangWorker& w : file.workers) {
      if (std::find(w.ranks.begin(), w.ranks.end(), view.rank) == w.ranks.end()) continue;
      rank["worker"] = w.index;
      rank["pid"] = w.pid;
      rank["host"] = w.host;
      rank["silent_ms"] = w.silent_ms;
    }
    out["ranks"].push_back(std::move(rank));
  }
  return out;
}

}  // namespace sgactor::apps
