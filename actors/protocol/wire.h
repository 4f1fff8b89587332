#pragma once
#include "actors/protocol/messages.h"
#include "graph/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// Wire forms of what crosses processes: control messages only, never tensors. Cap'n Proto
/// (control.capnp). Messages of actors/protocol/messages.h travel as they are; those below exist
/// between processes alone. Every envelope carries the generation in which it was sent.
namespace sgactor::actors::wire {

/// Grows with every change that an older process would misread.
inline constexpr uint32_t kProtocol = 7;
/// Most bytes of one encoded envelope; a plan is the largest thing sent.
inline constexpr size_t kMaxBytes = size_t{1} << 29;

/// A process of the job as the control plane names it. 1 is the coordinator's; others are given in
/// order of joining and never used again.
using PeerId = uint32_t;
inline constexpr PeerId kNobody = 0;
inline constexpr PeerId kCoordinatorPeer = 1;

enum class Role : uint8_t { kNode = 0, kWorker };
std::string_view to_string(Role role);

/// joining process -> coordinator, its first message. Answered by Welcome or refused.
struct Hello {
  Role role = Role::kNode;
  std::string build;      ///< version and hash of the program
  uint64_t job_hash = 0;  ///< of the resolved job file, where the sender has one; 0: takes any
  std::string host;
  int64_t pid = 0;
  PeerId node = kNobody;             ///< kWorker: the node that started it
  int32_t index = 0;                 ///< kWorker: which worker of the job, as StartWorkers said
  std::vector<std::string> devices;  ///< kNode: one entry a worker it can host
  bool spare = false;                ///< takes no part until somebody is lost
};
struct Welcome {
  PeerId peer = kNobody;  ///< the receiver's own id from here on
  uint64_t job_hash = 0;
};
/// coordinator -> joining process: not taken; the link closes behind it.
struct Refused {
  Status why;
};

/// coordinator -> node: start a worker a device.
struct StartWorkers {
  std::vector<std::string> devices;
  int32_t first_index = 0;  ///< of the first of them; others follow
};
/// node -> coordinator: a worker process of its own has ended. `how`: "exit code 1", "signal 9".
struct WorkerExited {
  int32_t index = 0;
  int64_t pid = 0;
  std::string how;
};
/// node -> coordinator: somebody there asked to stop: finish the step, checkpoint, end.
struct StopJob {
  std::string reason;
};

/// coordinator -> worker: everything a worker needs to set up its logical ranks. Asked as a
/// request, answered by PlanLoaded or Failed.
struct LoadPlan {
  uint64_t job_hash = 0;
  std::string job;  ///< resolved job file, TOML
  std::string job_name;
  std::string plan;             ///< serialize_plan
  std::string validation_plan;  ///< the same; empty: none
  std::vector<int32_t> ranks;   ///< logical, ascending
  int32_t worker = 0;
  std::string run_directory;
  int64_t first_step = 1;
  std::string checkpoint;   ///< step directory to start from; empty: initial weights
  std::string secret;       ///< of the job's data-plane links, 32 bytes
  std::string mirror_root;  ///< where update inputs are kept; empty: nowhere
  int64_t redo_from = 0;    ///< TrainingSpec::redo_from
};
struct PlanLoaded {
  int32_t worker = 0;
  std::string address;      ///< of its data plane: opaque
  std::string fingerprint;  ///< of its arithmetic
};
/// coordinator -> worker: who hosts what in a generation.
struct Route {
  PeerId peer = kNobody;
  std::string address;
  std::vector<int32_t> ranks;
};
struct Routes {
  int64_t generation = 1;
  std::vector<Route> routes;
};
/// coordinator -> anybody: end. An ok Status is an orderly end.
struct Shutdown {
  Status why;
};
/// The answer to a request that could not be carried out.
struct Failed {
  Status why;
};
/// A payload of a layer above: `kind` is that layer's number, its decoding that layer's business.
struct Opaque {
  uint32_t kind = 0;
  std::string payload;
};
/// Says that the sender's gateway handles messages, and how many its actors have handled.
struct Heartbeat {
  int64_t sequence = 0;
  int64_t progress = 0;
};

/// coordinator -> node: kill a worker process of yours, which is not heard any more.
struct EndWorker {
  int32_t index = 0;
  bool only_if_stopped = false;  ///< leave it alone unless the system says that it is stopped
};

/// In the order of the union in control.capnp, so that index() and the schema's tag agree.
using Body =
    std::variant<Hello, Welcome, Refused, StartWorkers, WorkerExited, StopJob, LoadPlan, PlanLoaded,
                 Routes, Shutdown, Failed, Opaque, BeginStep, Commit, BeginValidation, TakeSnapshot,
                 Finish, RankReady, Vote, StepDone, ValidationDone, SnapshotEnqueued,
                 SnapshotWritten, RankFinished, FaultReport, Heartbeat, EndWorker, Resume, Recheck>;
std::string_view name_of(const Body& body);
/// Messages of a step, which belong to one generation; the others are valid in every one.
bool belongs_to_generation(const Body& body);

struct Envelope {
  PeerId sender = kNobody;
  PeerId receiver = kNobody;
  int64_t generation = 0;
  uint64_t request = 0;  ///< not 0: an answer is expected
  uint64_t answers = 0;  ///< not 0: this is the answer to that request of the receiver
  Body body;
};

/// Deterministic. Errors: kOverloaded if longer than kMaxBytes. Status messages are cut at 16 KiB.
Result<std::string> encode(const Envelope& envelope);
/// Safe on hostile bytes; memory is bounded by a small multiple of bytes.size(). Enumerations are
/// in range afterwards; numbers that name ranks, steps or peers are not checked. Errors:
/// kCorruption; kUnsupported for another kProtocol.
Result<Envelope> decode(std::string_view bytes);

}  // namespace sgactor::actors::wire
