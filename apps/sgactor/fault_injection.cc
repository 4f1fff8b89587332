#include "apps/sgactor/fault_injection.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>

namespace sgactor::apps {
namespace {

class FaultyFile final : public transport::WritableFile {
 public:
  FaultyFile(std::unique_ptr<transport::WritableFile> inner, std::string path,
             std::shared_ptr<std::atomic<FaultyFiles::Fault>> next)
      : inner_(std::move(inner)), path_(std::move(path)), next_(std::move(next)) {}

  Status append(std::span<const std::byte> bytes) override {
    const FaultyFiles::Fault fault = next_->exchange(FaultyFiles::Fault::kNone);
    if (fault == FaultyFiles::Fault::kNone) return inner_->append(bytes);
    SGA_TRY(inner_->append(bytes.first(bytes.size() / 2)));
    if (fault == FaultyFiles::Fault::kTorn) ::kill(::getpid(), SIGKILL);
    return internal_error(path_ + ": write: No space left on device");
  }
  Status sync() override { return inner_->sync(); }
  Status close() override { return inner_->close(); }

 private:
  std::unique_ptr<transport::WritableFile> inner_;
  const std::string path_;
  std::shared_ptr<std::atomic<FaultyFiles::Fault>> next_;
};

}  // namespace

bool takes_injections() { return std::getenv(kInjectVariable) != nullptr; }

actors::wire::Opaque to_wire(uint32_t kind, const InjectedFault& fault) {
  const nlohmann::ordered_json json = {{"inject", fault.kind}, {"worker", fault.worker},
                                       {"value", fault.value}, {"message", fault.message},
                                       {"step", fault.step},   {"to_rank", fault.to_rank},
                                       {"peer", fault.peer}};
  return {kind, json.dump()};
}

Result<InjectedFault> parse_injected(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto is_number = [&json](const char* key) {
    return json.contains(key) && json[key].is_number_integer();
  };
  if (!json.is_object() || !json.contains("inject") || !json["inject"].is_string() ||
      !is_number("worker") || !is_number("value")) {
    return corruption("not an injected fault");
  }
  const auto number_or = [&](const char* key, int64_t other) {
    return is_number(key) ? json[key].get<int64_t>() : other;
  };
  InjectedFault out;
  out.kind = json["inject"].get<std::string>();
  out.worker = json["worker"].get<int32_t>();
  out.value = json["value"].get<int64_t>();
  out.message = number_or("message", 0);
  out.step = number_or("step", 0);
  out.to_rank = static_cast<int32_t>(number_or("to_rank", -1));
  out.peer = static_cast<actors::wire::PeerId>(number_or("peer", 0));
  return out;
}

Result<std::unique_ptr<transport::WritableFile>> FaultyFiles::create(const std::string& path) {
  SGA_ASSIGN(auto file, PosixFileSystem::create(path));
  return std::unique_ptr<transport::WritableFile>(
      std::make_unique<FaultyFile>(std::move(file), path, next_));
}

Result<std::unique_ptr<transport::WritableFile>> FaultyFiles::open_append(const std::string& path) {
  SGA_ASSIGN(auto file, PosixFileSystem::open_append(path));
  return std::unique_ptr<transport::WritableFile>(
      std::make_unique<FaultyFile>(std::move(file), path, next_));
}

namespace {

/// False if it is no fault of a link.
bool strike_link(const InjectedFault& fault, transport::LinkFaults& links) {
  using Action = transport::FaultScript::Action;
  constexpr int64_t kNsPerMs = 1'000'000;
  const int64_t skip = std::max<int64_t>(0, fault.message - 1);
  if (fault.kind == "drop_frame") {
    links.arm(fault.peer, {Action::kDrop, 0, skip});
  } else if (fault.kind == "delay_frame") {
    links.arm(fault.peer, {Action::kDelay, fault.value * kNsPerMs, skip});
  } else if (fault.kind == "duplicate_frame") {
    links.arm(fault.peer, {Action::kDuplicate, 0, skip});
  } else if (fault.kind == "corrupt_frame") {
    links.arm(fault.peer, {Action::kCorrupt, 0, skip});
  } else if (fault.kind == "partition") {
    const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    links.cut(fault.peer, now + fault.value * kNsPerMs);
  } else {
    return false;
  }
  return true;
}

/// False if it is none that waits for a message.
bool set_trap(const InjectedFault& fault, actors::MessageTrap& trap) {
  using Action = actors::MessageTrap::Action;
  constexpr std::array<std::pair<std::string_view, Action>, 4> kActions = {
      {{"kill_actor", Action::kThrow},
       {"stall_worker", Action::kStall},
       {"kill_worker", Action::kKill},
       {"hang_worker", Action::kStop}}};
  if (fault.message <= 0) return false;
  const auto* it = std::find_if(kActions.begin(), kActions.end(),
                                [&](const auto& entry) { return entry.first == fault.kind; });
  if (it == kActions.end()) return false;
  trap.arm(it->second, fault.step, fault.message);
  return true;
}

}  // namespace

Status inject(const InjectedFault& fault, actors::RunShared& shared, FaultyFiles& files,
              transport::LinkFaults& links) {
  if (strike_link(fault, links) || set_trap(fault, shared.trap)) return {};
  if (fault.kind == "kill_actor") {
    shared.trap.arm(actors::MessageTrap::Action::kThrow);
  } else if (fault.kind == "stall_worker") {
    shared.stall_in_actor.store(true);
  } else if (fault.kind == "disk_full") {
    files.arm(FaultyFiles::Fault::kFull);
  } else if (fault.kind == "torn_write") {
    files.arm(FaultyFiles::Fault::kTorn);
  } else {
    return unsupported("a worker cannot have the fault " + fault.kind);
  }
  return {};
}

}  // namespace sgactor::apps
