#pragma once
#include "actors/protocol/wire.h"
#include "actors/runtime/run_shared.h"
#include "graph/base/status.h"
#include "transport/core/faulty_link.h"
#include "transport/storage/file_system.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace sgactor::apps {

/// Faults that a run is asked to have, for `sgactor chaos`: a request in the control directory ->
/// coordinator -> the worker, or its node -> a hook. A run whose environment lacks kInjectVariable
/// takes none.
inline constexpr const char* kInjectVariable = "SGACTOR_INJECT";
[[nodiscard]] bool takes_injections();

/// Kinds of wire::Opaque.
inline constexpr uint32_t kInjectFault = 1;  ///< coordinator -> worker or node: InjectedFault
inline constexpr uint32_t kDeviceFault = 2;  ///< node -> coordinator: kind "xid"
inline constexpr uint32_t kAskViews = 3;     ///< coordinator -> worker: hang_views.h
inline constexpr uint32_t kRankViews = 4;    ///< worker -> coordinator

struct InjectedFault {
  std::string kind;     ///< as ChaosFault's names
  int32_t worker = -1;  ///< index
  int64_t value = 0;
  /// Above 0: at this message of that step, or (of faults of a link) at this frame. Else at once.
  int64_t message = 0;
  int64_t step = 0;
  /// Of faults of a link, the rank at its other end; the coordinator puts its process in `peer`.
  int32_t to_rank = -1;
  actors::wire::PeerId peer = actors::wire::kNobody;
};
actors::wire::Opaque to_wire(uint32_t kind, const InjectedFault& fault);
/// Errors: kCorruption.
Result<InjectedFault> parse_injected(std::string_view json);

/// The machine's files, whose next write can be told to fail. Thread-safe.
class FaultyFiles final : public transport::PosixFileSystem {
 public:
  enum class Fault : uint8_t {
    kNone = 0,
    kFull,  ///< half of the bytes are written, then there is no space
    kTorn,  ///< half of the bytes are written, then this process is killed
  };
  FaultyFiles() : next_(std::make_shared<std::atomic<Fault>>(Fault::kNone)) {}
  void arm(Fault fault) { next_->store(fault); }
  Result<std::unique_ptr<transport::WritableFile>> create(const std::string& path) override;
  Result<std::unique_ptr<transport::WritableFile>> open_append(const std::string& path) override;

 private:
  std::shared_ptr<std::atomic<Fault>> next_;
};

/// Carries out what a worker's process is asked for. Errors: kUnsupported for another kind.
Status inject(const InjectedFault& fault, actors::RunShared& shared, FaultyFiles& files,
              transport::LinkFaults& links);

}  // namespace sgactor::apps
