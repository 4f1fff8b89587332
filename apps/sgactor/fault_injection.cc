#include "apps/sgactor/fault_injection.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

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
  const nlohmann::ordered_json json = {
      {"inject", fault.kind}, {"worker", fault.worker}, {"value", fault.value}};
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
  return InjectedFault{json["inject"].get<std::string>(), json["worker"].get<int32_t>(),
                       json["value"].get<int64_t>()};
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

Status inject(const InjectedFault& fault, actors::RunShared& shared, FaultyFiles& files) {
  if (fault.kind == "kill_actor") {
    shared.throw_in_actor.store(true);
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
